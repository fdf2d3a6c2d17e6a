"""What cards can do by their data sheets, and what the processor's stages were measured to take."""

from dataclasses import dataclass

from pipeline.planning.counts import Counts

GIB = 2**30
# Of what a data sheet says, the shares that memory and arithmetic are taken to reach: assumed.
MEMORY_SHARE, ARITHMETIC_SHARE = 0.8, 0.6
CONTEXT_MIB = 500  # of a card's memory, that CUDA takes for itself: assumed


@dataclass(frozen=True)
class Card:
    """How fast something computes.

    Attributes:
        bytes_per_s: memory's bandwidth.
        flops, half_flops: a second, in float32 and with operands of 16 bits.
        launch_s: between the starts of two kernels, at the least.
        memory_gib: as torch finds it; 0 = not bounded here.
        capability: CUDA's, which says what types of 16 bits there are.
    """

    name: str
    bytes_per_s: float
    flops: float
    half_flops: float
    launch_s: float
    memory_gib: float = 0.0
    capability: tuple[int, int] = (0, 0)

    def seconds(self, counts: Counts, *, work: float = 1.0, launches: float = 1.0) -> float:
        """Return the longest of what bytes, operations and launches take, `work` times as many."""
        whole = (counts.flops - counts.half_flops) / self.flops
        arithmetic = work * (whole + counts.half_flops / self.half_flops)
        moving = work * counts.bytes / self.bytes_per_s
        return max(moving, arithmetic, launches * counts.kernels * self.launch_s)


def _card(
    name: str, capability: tuple[int, int], *, gib: float, gb_s: float, tflops: tuple[float, float]
) -> Card:
    """Take a card's data sheet: dense TFLOPS in float32 and in 16 bits. A launch is assumed."""
    single, half = (value * 1e12 * ARITHMETIC_SHARE for value in tflops)
    launch_s = 10e-6 if capability < (8, 0) else 7e-6
    return Card(name, gb_s * 1e9 * MEMORY_SHARE, single, half, launch_s, gib, capability)


CARDS = {
    card.name: card
    for card in (
        _card("t4", (7, 5), gib=14.6, gb_s=320, tflops=(8.1, 65)),
        _card("p100", (6, 0), gib=15.9, gb_s=732, tflops=(9.5, 19)),
        _card("a100", (8, 0), gib=79.2, gb_s=2039, tflops=(19.5, 312)),
        _card("h100", (9, 0), gib=79.2, gb_s=3350, tflops=(67, 989)),
        _card("h200", (9, 0), gib=139.8, gb_s=4800, tflops=(67, 989)),
    )
}


def card_named(name: str) -> Card | None:
    """Return the card that torch calls by a name such as "Tesla T4"; None if it is not known."""
    words = name.lower().replace("-", " ").split()
    return next((card for key, card in CARDS.items() if key in words), None)


# One thread of an AMD EPYC, by training cross_config_sage on 1,000 kept nodes, 64 configs, 64
# channels: .92 s for 4.6 GB and 14 GFLOP as counted; half as long as its memory alone would allow.
THREAD = Card("one thread", 5e9, 30e9, 30e9, 10e-6)

# Seconds of that thread, measured on synthetic graphs of the published sizes, by unit: a config of
# one node, of all or of all distinct ones; a tile config; a round of boosting by row.
NODE_CONFIG_S = {
    "layout prepare": 2.5e-9,
    "layout score": 8e-9,
    "layout statistics": 3.2e-8,
    "rank layout_boosting": 8e-9,
    "rank layout_linear": 8e-9,
}
TILE_CONFIG_S = {
    "tile prepare": 7e-6,
    "tile score": 2.3e-5,
    "rank tile_boosting": 6e-6,
    "rank tile_linear": 6e-6,
}
TILE_STATISTICS_S = 0.035  # of a kernel
ROW_ROUND_S = {"layout_boosting": 1.6e-6, "tile_boosting": 3e-6}
LIBRARIES_MIB = 363  # of the process, before it has read anything
# Measured with a million rows of 100 statistics (models/trees/rows.py); 7 where folds find rounds.
BYTES_PER_STATISTIC, BYTES_WITH_FOLDS = 3, 7

# The largest published file. Synthetic ones, whose bytes were measured, compress ten times worse.
MOST_RAW_BYTES = 25e6
# Bytes of files, measured on the same graphs.
RAW_NODE_CONFIG, RAW_TILE_CONFIG = 0.11, 16.0
STORE_NODE, STORE_TILE_CONFIG = 800.0, 182.0
SCORES_OF_CONFIG = {"layout": 46.0, "tile": 25.0}


@dataclass(frozen=True)
class Machine:
    """What a recipe runs on.

    Attributes:
        card: None = there is no GPU.
        n_cards, n_cores: Cards and cores that share the work. A training takes one card.
        gpu_scale, cpu_scale: how many times as long as computed networks take there; what else
            the processor does is not scaled.
        measured: what says so; "" = nothing was measured.
    """

    card: Card | None = CARDS["t4"]
    n_cards: int = 1
    n_cores: int = 8
    gpu_scale: float = 1.0
    cpu_scale: float = 1.0
    measured: str = ""

    def seconds(self, counts: Counts, *, on_gpu: bool, **times: float) -> float:
        """Return how long a network's work takes on a card, or on one thread of the processor."""
        if on_gpu and self.card:
            return self.card.seconds(counts, **times) * self.gpu_scale
        return THREAD.seconds(counts, **times) * self.cpu_scale
