"""The host: the CPU of this process, where input, counters and shared variables live."""

HOST = '/device:CPU:0'
