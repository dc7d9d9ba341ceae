"""What workers cost each other: the formula of a ring, and links slow enough to test it."""

from tests.mutants.mutant import mutants_of

MUTANTS = [
    *mutants_of(
        'benchmarks/peers/ring.py', tests='tests/benchmarks/test_workers.py', faults=[
            ('waits = (count_messages(num_workers) + 1) * link.latency',
             'waits = count_messages(num_workers) * link.latency',
             'the formula leaves out the request that the first message waits for',
             'test_a_ring_of_one_costs_nothing_and_of_many_twice_the_bytes'),
        ]),
    *mutants_of(
        'benchmarks/harness/slow_links.py', tests='tests/benchmarks/test_slow_links.py', faults=[
            ('ctypes.CDLL(None).prctl(_SET_END_WITH_PARENT, signal.SIGKILL)',
             'ctypes.CDLL(None).prctl(_SET_END_WITH_PARENT, 0)',
             'namespaces and their processes outlive a benchmark that is killed',
             'test_nothing_is_left_of_processes_and_namespaces'),
            ('leaves = max(time.monotonic(), is_free_at[rank]) + len(packet) / link.bandwidth',
             'leaves = time.monotonic() + len(packet) / link.bandwidth',
             'packets do not wait for those before them, and a link has any bandwidth',
             'test_packets_wait_for_those_before_them_and_a_latency_and_arrive_in_order'),
        ]),
]
