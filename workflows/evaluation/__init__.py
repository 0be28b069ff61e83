"""Scoring: lm-eval with counters. What to read for what:

- ``harness.py``: lm-eval's model class, which counts what ran; ``prefix.py``: answers with the same
  context share one pass; ``ends.py``: end tokens, greedy decoding; ``registered.py``: the class
  under lm-eval's own command.
- ``score.py``: scores, items and skip rates of all tasks; ``answers.py``: chosen answers, and what
  a guess scores; ``perplexity.py``: a text file; ``fidelity.py``: distance to the dense model;
  ``beside_stock.py``: lm-eval's own class on the same items; ``own_texts.py``: texts that a model
  writes itself; ``store.py``: scores of single tasks on disk; ``traces.py``: texts and routes for
  the page.
- ``tasklist.py``: the tasks of a suite; ``tasknames.py``: which names can be scored;
  ``taskfiles.py``: own task files; ``stock.py``: names of lm-eval's tasks; ``loading.py``: tasks
  with their data; ``faults.py``: errors of a task as one sentence; ``tasks/``: this project's
  tasks.
- ``probe.py``: probe texts, on which thresholds are calibrated; ``chat.py``: chat templates.
- ``sandbox.py``: programs that a model wrote; ``inside.py`` runs in it, ``syscalls.py`` limits it.
- ``models.py``: the model of a folder.
"""
