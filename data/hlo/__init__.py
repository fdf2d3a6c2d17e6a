"""From HLO modules and TpuGraphs' tuning protobufs to graphs in the dataset's format."""
