"""The host: this process's CPU, which holds the input, the counters and shared variables."""

HOST = '/device:CPU:0'
