"""Cards by their data sheets."""

from dataclasses import dataclass

# Shares of the data sheet that networks reach. Bandwidth: training steps of cross_config_sage on an
# H100. Arithmetic: assumed.
MEMORY_SHARE, ARITHMETIC_SHARE = 0.5, 0.6


@dataclass(frozen=True)
class Card:
    """A GPU.

    Attributes:
        name: Name for `--gpu`, or torch's name of a card that is not in `CARDS`.
        capability: CUDA compute capability. It decides whether the card has bfloat16.
        memory_gib: Memory as torch finds it, in GiB.
        gb_s: Memory bandwidth, in GB per second.
        tflops: Dense float32 operations, in 10^12 per second.
        half_tflops: Dense 16-bit operations, in 10^12 per second.
    """

    name: str
    capability: tuple[int, int]
    memory_gib: float
    gb_s: float
    tflops: float
    half_tflops: float


CARDS = {
    card.name: card
    for card in (
        Card("t4", (7, 5), 14.6, gb_s=320, tflops=8.1, half_tflops=65),
        Card("p100", (6, 0), 15.9, gb_s=732, tflops=9.5, half_tflops=19),
        Card("a100", (8, 0), 79.2, gb_s=2039, tflops=19.5, half_tflops=312),
        Card("h100", (9, 0), 79.2, gb_s=3350, tflops=67, half_tflops=989),
        Card("h200", (9, 0), 139.8, gb_s=4800, tflops=67, half_tflops=989),
    )
}


def card_named(name: str) -> Card | None:
    """Return a card, None for an unknown one.

    Args:
        name: torch's name of the card, for example "Tesla T4".
    """
    words = name.lower().replace("-", " ").split()
    return next((card for key, card in CARDS.items() if key in words), None)
