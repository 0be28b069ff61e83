"""Compiled kernels run without a GPU: their PTX, instruction by instruction, on CPU tensors.

Triton's interpreter runs what a kernel says; here runs what its compiler made of it for a target:
layouts, shuffles, shared memory, asynchronous copies, tensor cores. A program runs alone and its
threads are an axis of NumPy arrays; that is enough for kernels whose programs share no byte, which
``tests/programs.py`` checks. Tests of kernels run so under ``SKIPBENCH_EMULATE=90``.

    code.py     PTX as instructions
    memory.py   the tensors of a launch
    program.py  one program: registers, shared memory, and what may go wrong there
    moves.py    loads, stores, copies, shuffles
    numbers.py  arithmetic, conversions, products on tensor cores
    run.py      launches: compiled, then run program by program
"""
