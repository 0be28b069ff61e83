"""Machines a suite may run on, and how long they take for a given work."""

from __future__ import annotations

from dataclasses import dataclass

# Share of the peak that eager transformers reaches on wide matrices; a guess until measured.
SHARE = 0.45
GB = 1e9


@dataclass(frozen=True)
class Machine:
    """A machine; GPUs in 16 bits, the CPU in float32.

    Args:
        name: In tables.
        rate: Operations per second on wide matrices, sustained.
        bandwidth: Bytes per second from memory.
        launch: Least seconds of one layer in one pass, however small it is.
        half: Width D at which half of ``rate`` is reached: narrow matrices do not fill a GPU.
        memory: Bytes; 0: no limit.
        jobs: Runs side by side, each with its share of ``rate`` and ``bandwidth``.
    """

    name: str
    rate: float
    bandwidth: float
    launch: float
    half: int
    memory: float
    jobs: int = 1

    def seconds(
        self, flops: float, width: int, layer_passes: float, weight_bytes: float = 0.0
    ) -> float:
        """Seconds of one run that has the machine, or its share of it, to itself.

        Args:
            flops: Operations.
            width: D of the model.
            layer_passes: Layers times passes over them, backward passes among them.
            weight_bytes: Of weights that decoding reads: their time comes on top.
        """
        share = 1 / self.jobs
        computing = flops / (self.rate * share * width / (width + self.half))
        return max(computing, layer_passes * self.launch) + weight_bytes / (self.bandwidth * share)


# Peaks in dense bfloat16: 989, 312, 989 and 165 TFLOP/s. One core of an AMD EPYC took 43 to 67
# GFLOP/s in fits of Llama-3.2-1B in float32 (reports/reference/cost_llama32_1b.json).
MACHINES = (
    Machine("H100 SXM", SHARE * 989e12, 3.0e12, 4e-4, 512, 80e9),
    Machine("A100 80 GB", SHARE * 312e12, 1.8e12, 4e-4, 512, 80e9),
    Machine("H200", SHARE * 989e12, 4.3e12, 4e-4, 512, 141e9),
    Machine("RTX 4090", SHARE * 165e12, 0.93e12, 4e-4, 512, 24e9),
    Machine("8 CPU cores", 8 * 50e9, 80e9, 5e-5, 0, 0.0, jobs=8),
)
# Of a run: Python, imports, records; and bytes per second at which weights come from disk.
START_SECONDS, DISK_RATE = 30.0, 1e9
