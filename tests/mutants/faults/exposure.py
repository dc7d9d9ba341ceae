"""Who reaches the servers of workers: a filter on one machine, and the launcher's own network."""

from tests.mutants.mutant import mutants_of

MUTANTS = [
    *mutants_of(
        'towers/training/cluster/worker.py', tests='tests/training/cluster/test_loopback.py',
        faults=[
            ('if cluster.is_on_loopback:', 'if not cluster.is_on_loopback:',
             'workers on several machines refuse each other, those on one refuse nobody',
             'test_a_server_takes_other_machines_only_if_there_are_some'),
        ]),
    *mutants_of(
        'towers/placement/cluster.py', tests='tests/training/cluster/test_loopback.py', faults=[
            ('return all(is_loopback(address) for address in self.addresses)',
             'return any(is_loopback(address) for address in self.addresses)',
             'one worker with an address of loopback makes others refuse all machines',
             'test_a_server_takes_other_machines_only_if_there_are_some'),
        ]),
    *mutants_of(
        'towers/training/cluster/loopback.py', tests='tests/training/cluster/test_loopback.py',
        faults=[
            ("if os.readlink(f'/proc/self/fd/{name}') in names:",
             "if os.readlink(f'/proc/self/fd/{name}').startswith('socket:'):",
             'sockets of TensorFlow get another descriptor, and it hangs',
             'test_no_other_socket_gets_a_second_descriptor'),
        ]),
    *mutants_of(
        'towers/launch/network.py', tests='tests/launch/test_network.py', faults=[
            ('if name == LOOPBACK:', 'if name == OPEN:',
             'workers start without the network that was asked for',
             'test_a_kernel_that_refuses_is_named_and_auto_goes_on'),
            ("struct.pack(_REQUEST, b'lo', flags | _UP)", "struct.pack(_REQUEST, b'lo', flags)",
             'workers in a network of their own cannot reach each other',
             'test_only_the_workers_reach_each_other_in_a_network_of_their_own'),
        ]),
]
