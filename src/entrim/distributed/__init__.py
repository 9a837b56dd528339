"""Several processes that prune one network together, in a process group of `torch.distributed`."""
