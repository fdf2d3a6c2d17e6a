"""How much synthetic data to make, and of which families: every split has its own."""

from dataclasses import dataclass

from data.synthetic.networks import Family

Range = tuple[int, int]


@dataclass(frozen=True)
class SyntheticPlan:
    """Counts of one synthetic tree; triples are for train, valid and test.

    Attributes:
        layout_graphs: graphs per split of each layout collection.
        nodes: fewest and most nodes of a layout graph; one block may already exceed the most.
        layout_configs: fewest and most configs of a layout graph.
        tile_kernels: kernels per split.
        tile_configs: fewest and most configs of a kernel, as far as it has that many tilings.
    """

    layout_graphs: tuple[int, int, int]
    nodes: Range
    layout_configs: Range
    tile_kernels: tuple[int, int, int]
    tile_configs: Range


PLANS = {
    "tiny": SyntheticPlan((2, 1, 1), (60, 100), (40, 40), (6, 3, 3), (20, 40)),
    "small": SyntheticPlan((10, 4, 4), (150, 500), (150, 300), (60, 20, 20), (20, 300)),
}

# Sizes that tell siblings of a family apart, in the order in which they are made.
BATCHES = (8, 32, 16, 12, 64, 24, 4, 48)

FAMILIES: dict[tuple[str, str], tuple[Family, ...]] = {
    ("xla", "train"): (
        Family("resnet_like", "convolutional", 64, 56),
        Family("vgg_like", "convolutional", 48, 64, skip="none", flatten=True),
        Family("recurrent_like", "recurrent", 384, 32),
        Family("mobile_like", "convolutional", 32, 56, activation="swish", windows=(1, 3, 1)),
        Family("gated_like", "convolutional", 48, 48, element_type="bf16", skip="gate"),
    ),
    ("xla", "valid"): (
        Family("inception_like", "convolutional", 48, 64, windows=(1, 5), skip="concatenate"),
        Family("wide_like", "convolutional", 96, 48, windows=(3, 1)),
    ),
    ("xla", "test"): (
        Family("dense_like", "convolutional", 64, 48, windows=(1, 3), skip="concatenate"),
        Family("efficient_like", "convolutional", 40, 56, activation="swish", skip="gate"),
    ),
    ("nlp", "train"): (
        Family("bert_like", "transformer", 512, 128, activation="gelu"),
        Family("albert_like", "transformer", 768, 64, activation="gelu", heads=12, flatten=True),
        Family("gpt_like", "transformer", 640, 256, element_type="bf16", activation="gelu"),
        Family("electra_like", "transformer", 256, 128, activation="relu", heads=4),
    ),
    ("nlp", "valid"): (
        Family("roberta_like", "transformer", 384, 128, activation="gelu", heads=6, flatten=True),
        Family("opt_like", "transformer", 512, 192, activation="relu"),
    ),
    ("nlp", "test"): (
        Family("t5_like", "transformer", 512, 96, activation="relu", centred=False),
        Family("deberta_like", "transformer", 768, 128, activation="gelu", heads=12),
    ),
}


@dataclass(frozen=True)
class Sibling:
    """One size of a family; its name tells all three."""

    family: Family
    batch: int
    width: int

    def name(self, depth: int) -> str:
        """Return the graph's name, such as "resnet_like_d4_w64_b32"."""
        return f"{self.family.name}_d{depth}_w{self.width}_b{self.batch}"


def siblings(source: str, split: str, n_graphs: int) -> list[Sibling]:
    """List `n_graphs` distinct sizes of the families of one split, family by family in turn.

    The first round has each family's own width; after all batches are used up, widths grow.
    """
    families = FAMILIES[source, split]
    result = []
    for i in range(n_graphs):
        family = families[i % len(families)]
        growth, turn = divmod(i // len(families), len(BATCHES))
        result.append(Sibling(family, BATCHES[turn], family.width * (1 + growth)))
    return result
