"""Layers."""

from tests.mutants.mutant import mutants_of

MUTANTS = [
    *mutants_of(
        'towers/tower/batch_norm_layer.py', tests='tests/tower/test_batch_norm_layer.py', faults=[
            ('variable.assign_sub((1 - momentum) * (old - moment), read_value=False)',
             'variable.assign_sub(momentum * (old - moment), read_value=False)',
             'momentum is taken the other way round',
             'test_a_layer_is_what_numpy_says'),
            ('moments = [mean, variance * (count / tf.maximum(count - 1, 1))]',
             'moments = [mean, variance]',
             'the moving variance is that of the batch, not of the population',
             'test_a_layer_is_what_numpy_says[True]'),
            ('data=average, pred=is_training)[0]])',
             'data=average, pred=is_training)[1]])',
             'training and validation are confused',
             'test_kernel_and_sums_are_one_layer'),
            ('zip(of_batch, averages)]',
             'zip(of_batch, averages[:1] * 2)]',
             'validation takes the mean for the variance',
             'test_kernel_and_sums_are_one_layer'),
            ('values = tf.raw_ops.Switch(data=x, pred=is_training)[1]',
             'values = x',
             'validation sums moments between towers',
             'tests/tower/test_batch_norm.py::test_validation_sums_no_moments_between_towers_and_'
             'workers'),
            ('for_averages, for_batch = tf.raw_ops.Switch',
             'for_batch, for_averages = tf.raw_ops.Switch',
             'the branches of training and validation are swapped',
             'test_kernel_and_sums_are_one_layer'),
            ('return [*tf.cond(is_training, by_batch, by_averages), None, None]',
             'return [*by_batch(), None, None]',
             'gradients that a model validates with are dead',
             'test_a_switched_kernel_has_the_bits_and_derivatives_of_the_one_it_takes'),
            ('differences = values - per_channel(averages[0])',
             'differences = values',
             'sums of squares cancel where means are large, and the mean is off',
             'test_kernel_and_sums_are_one_layer tests/tower/test_batch_norm.py::test_large_'
             'means_do_not_cancel'),
            ('axes = [0, 2, 3] if is_nchw',
             'axes = [0, 1, 2] if is_nchw',
             'channels first sums over channels',
             'test_channels_first_is_the_same_layer'),
        ]),
]
