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
    *mutants_of(
        'towers/training/cluster/roll_call.py', tests='tests/training/cluster/test_roll_call.py',
        faults=[
            ('if has_changed and time.monotonic() >= sent_at + _SECONDS_BETWEEN_LINES:',
             'if has_changed:', 'each worker hears of every other that comes',
             'test_of_many_workers_none_is_told_of_each_other_nor_gets_equal_facts_twice'),
            ('reporters.poll(_SECONDS_BETWEEN) or has_changed', 'reporters.poll(_SECONDS_BETWEEN)',
             'nobody hears of a worker that comes soon after another',
             'test_a_worker_that_leaves_is_missing_again_unless_another_never_came[True-1]'),
        ]),
    *mutants_of(
        'towers/training/cluster/peers.py', tests='tests/training/cluster/test_peers.py', faults=[
            ('for index in range(min(_MOST_IN_A_CHECK, len(self._others)))]',
             'for index in range(len(self._others))]',
             'the cost of a check grows with the number of workers',
             'test_a_check_asks_few_and_each_worker_is_asked_as_often[512]'),
            ('self._others[(self._num_asked + index) % len(self._others)]', 'self._others[index]',
             'each worker is watched by its neighbours alone',
             'test_a_check_asks_few_and_each_worker_is_asked_as_often[512]'),
            ('if not (self._is_alarmed or self._ended or self._silent_since):', 'if True:',
             'a worker that is silent is asked again only when its turn comes',
             'test_once_something_is_wrong_a_check_asks_all[does not answer]'),
            ('if _has_ended(connection):', 'if False:',
             'a process that another has replaced between two checks passes for it',
             'test_a_process_that_another_has_replaced_between_two_checks_has_ended'),
            ('  except ConnectionResetError:\n    return True', '  except ConnectionResetError:\n'
             '    return False',
             'a process that ends with bytes unread passes for the one in its place',
             'test_a_process_that_another_has_replaced_between_two_checks_has_ended[True]'),
            ('return {**self._ask(self._cluster, self._others), **ended}',
             'return self._ask(self._cluster, self._others)',
             'of many workers one that was replaced is forgotten when all are asked',
             'test_of_many_workers_one_that_was_replaced_is_seen_though_it_is_no_longer_asked'),
        ]),
]
