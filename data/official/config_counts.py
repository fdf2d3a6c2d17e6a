"""How many configs the competition's test graphs have, as far as it is public.

Derived, counts only. The sample submission lists 1000 indices for every layout graph and five for
every tile kernel; the test files' own counts, which competitors noted, differ in two layout graphs
and in sixteen kernels. Which kernels those are was not noted.
"""

LAYOUT_CONFIGS = 1000
# By submission ID: the layout graphs with another number of configs.
OTHER_LAYOUT_CONFIGS = {
    "layout:xla:random:937ee0eb0d5d6151b7b8252933b5c1c9": 1001,
    "layout:nlp:default:3a0c5517a87df8d82fd637b83298a3ba": 1001,
}
# How many the configs of a kernel can be at most was not noted. All kernels of the dataset together
# have 12.9 million, as published.
ALL_TILE_CONFIGS = 13_000_000
# Number of configs: number of kernels that have no more. All others have five or more.
SHORT_TILE_KERNELS = {2: 2, 3: 8, 4: 6}
