"""The same bits whatever the batch, the cache, the threads, the instruction set or the machine."""
