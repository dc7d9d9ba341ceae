"""Which examples each tower gets, and when."""

from tests.mutants.mutant import mutants_of

_SHAPES = 'tests/input/test_shapes.py'

MUTANTS = [
    *mutants_of(
        'towers/input/buckets.py', tests='tests/input/test_buckets.py', faults=[
            ('np.argsort(buckets.lengths[indices]', 'np.argsort(indices',
             'buckets are sorted by index',
             'test_a_window_keeps_its_examples_and_sorts_them_into_batches'),
            ('sizes[batches[-1]] -=', 'sizes[-1] -=',
             'the small batch of buckets stands among others',
             'test_a_window_keeps_its_examples_and_sorts_them_into_batches'),
            ('(window + 1) * window_size, examples_per_epoch', '(window + 1) * window_size, '
             'num_examples', 'buckets take what the plan drops',
             'test_a_window_keeps_its_examples_and_sorts_them_into_batches'),
            ('    if seed is not None:\n      batches = permute(',
             '    if seed is None:\n      batches = permute(',
             'buckets come from short to long',
             'test_batches_come_in_an_order_of_their_own_and_the_small_one_is_of_any_length'),
        ]),
    *mutants_of(
        'towers/input/order.py', tests='tests/input/test_buckets.py', faults=[
            ('if self.window == other.window == 0 and None in', 'if None in',
             'other buckets of an epoch in order count as the same order',
             'test_checkpoints_record_the_windows'),
        ]),
    *mutants_of(
        'towers/data/records.py', tests='tests/input/test_padding.py', faults=[
            ('read_unequal=reader._replace(components=first.any_sizes).read',
             'read_unequal=reader.read', 'padded records are held to the shape of the first one',
             'test_records_of_unequal_sizes_are_padded'),
        ]),
    *mutants_of(
        'towers/input/epoch.py', tests='tests/input/test_padding.py', faults=[
            ('plan.is_even and examples.padding is None and',
             'plan.is_even and',
             'towers of one step are padded to sizes of their own',
             'test_rows_keep_their_values_and_end_with_the_padding[unequal_arrays-next-2-16-batch]'),
            ('    if padding is None:\n'
             '      batches = _cut_batches(',
             '    if True:\n'
             '      batches = _cut_batches(',
             'padded examples that differ in size are cut from a batch without padding',
             'test_rows_keep_their_values_and_end_with_the_padding[unequal_arrays-shard-3-17-batch]'),
            ('sizes = [1 if size is None else size for',
             'sizes = [0 if size is None else size for',
             'the row that fills an empty batch of padded examples has no size',
             'tests/input/test_fill.py::test_a_worker_without_an_example_has_a_row_of_zeros[shard]'),
        ]),
    *mutants_of(
        'towers/input/plan.py', tests='tests/input/test_plan.py', faults=[
            ("return full + (remainder > 0 and self.last_batch != 'drop')",
             'return full + (remainder > 0)', 'a dropped remainder has a step of its own',
             'test_steps_cover_an_epoch_once'),
            ('return min(self.num_examples, self.steps_per_epoch * self.batch_size)',
             'return self.steps_per_epoch * self.batch_size',
             'the last batch of an epoch counts as a full one', 'test_steps_cover_an_epoch_once'),
            ('return -(-self.examples_per_epoch // self.micro_batch_size)',
             'return self.examples_per_epoch // self.micro_batch_size',
             'the last micro-batch of an epoch is not planned', 'test_steps_cover_an_epoch_once'),
            ('return self.examples_per_epoch % self.micro_batch_size == 0',
             'return self.num_examples % self.micro_batch_size == 0',
             'a dropped remainder makes shapes uneven', 'test_steps_cover_an_epoch_once'),
            ('< self.num_workers * self.num_towers', '< self.num_towers',
             'an empty tower of several workers gets no row that fills its batch',
             'tests/input/test_pipeline.py::test_workers_share_every_step_and_each_stays_with_'
             'its_own_positions'),
            ('return min(self.batch_size, self.examples_per_epoch - step_in_epoch * self.batch_'
             'size)',
             'return max(self.batch_size, self.examples_per_epoch - step_in_epoch * self.batch_'
             'size)', 'min and max are confused in the size of a step',
             'test_steps_cover_an_epoch_once'),
            ('return epoch * self.examples_per_epoch + step_in_epoch * self.batch_size',
             'return epoch * self.num_examples + step_in_epoch * self.batch_size',
             'examples that are dropped count as seen', 'test_steps_cover_an_epoch_once'),
            ('(tower < size % self.num_towers)', '(tower <= size % self.num_towers)',
             'one tower too many gets one example more',
             'test_eight_over_three test_steps_cover_an_epoch_once'),
            ('size = dealt(size, self.rank, self.num_workers)',
             'size = dealt(size, 0, self.num_workers)', 'every worker takes the share of the first',
             'test_workers_shares_add_up'),
            ('return (count - shard + num_shards - 1) // num_shards',
             'return (count - shard + num_shards) // num_shards', 'dealing is off by one',
             'test_dealing_in_turn_gives_each_example_to_one_tower'),
            ('if batch_size // accumulate < all_towers:',
             'if batch_size // accumulate < num_towers:',
             'micro-batches too small for the towers of all workers are taken',
             'test_impossible_sizes_are_named'),
            ('return divmod(step, self.steps_per_epoch)',
             'return divmod(step, self.micro_batches_per_epoch)',
             'a step is found by micro-batches', 'test_steps_cover_an_epoch_once'),
        ]),
    *mutants_of(
        'towers/input/pipeline.py', tests='tests/input/test_last_batch.py', faults=[
            ('tf.maximum(num_examples, 1) - 1)', 'tf.constant(0))',
             'a batch that is filled up is one example',
             'test_filled_up_is_as_kept_to_rounding_in_one_shape[split-2-2-2-tower]'),
        ]),
    *mutants_of(
        'towers/training_graph.py', tests='tests/input/test_last_batch.py', faults=[
            ("last_batch='pad' if last_batch == 'pad' else 'keep')", 'last_batch=last_batch)',
             'validation leaves its last batch out',
             'test_only_training_leaves_the_last_batch_out'),
        ]),
    *mutants_of(
        'towers/tower/coupled.py', tests='tests/input/test_last_batch.py', faults=[
            ('of_rows & (updates | normalise)', 'of_rows & updates',
             'rows that do not count move the moments of a kernel',
             'test_batch_normalisation_over_rows_that_do_not_count_is_refused'
             '[by_kernel-FusedBatchNorm]'),
            ('of_rows & (updates | normalise)', 'updates | normalise',
             'a counter of steps is refused for reading rows',
             'test_updates_that_read_no_row_are_welcome'),
        ]),
    *mutants_of(
        'towers/tower/losses.py', tests='tests/input/test_last_batch.py', faults=[
            ('    if batch.is_padded:', '    if batch.may_be_empty:',
             'a mean over rows that do not count is trained',
             'test_a_mean_over_rows_that_do_not_count_is_refused'),
        ]),
    *mutants_of(
        'towers/input/epoch.py', tests='tests/input/test_pipeline.py', faults=[
            ("if (mode == 'next' and shard.num_shards == 1 and plan.is_even and examples.padding "
             'is None and\n      plan.micro_batch_size % plan.num_towers == 0):',
             "if mode == 'next' and plan.micro_batch_size % plan.num_towers == 0:",
             'next drops what does not fill a batch of every tower',
             'test_every_step_takes_the_same_examples_in_every_mode'),
            ('first_micro_batch = tf.where(tf.equal(epoch, start.epoch), start.micro_batch,\n'
             '                                 tf.zeros_like(start.micro_batch))',
             'first_micro_batch = start.micro_batch', 'a resumed run skips in every epoch',
             'test_a_run_may_begin_at_any_step[False-split-(13, 8, 3)]'),
            ('[shard.position + block * shard.num_shards, epoch]',
             '[shard.position * block + block, epoch]',
             'a shuffled shard takes positions of others',
             f'{_SHAPES}::test_every_shape_takes_the_same_examples_in_the_same_steps'),
            ('tf.data.Dataset.range(first, end, _BLOCK)', 'tf.data.Dataset.range(0, end, _BLOCK)',
             'a resumed run takes its shuffled epoch from the start',
             'test_a_run_may_begin_at_any_step'),
            ('seed=None if seed is None else _epoch_seed(seed, epoch))',
             'seed=None if seed is None else _epoch_seed(seed, 0 * epoch))',
             'all epochs of a buffer are shuffled alike',
             f'{_SHAPES}::test_one_tower_takes_each_example_once_an_epoch_in_a_new_order'),
            ('seed=None if seed is None else _epoch_seed(seed, epoch))',
             'seed=None if seed is None else _epoch_seed(seed + shard.position, epoch))',
             'every shard shuffles by a buffer on its own',
             f'{_SHAPES}::test_every_shape_takes_the_same_examples_in_the_same_steps'),
            ('end = shard.dealt(plan.examples_per_epoch)', 'end = shard.dealt(plan.num_examples)',
             'the remainder is not dropped from a shuffled epoch',
             'test_dropping_the_remainder_takes_whole_batches_of_distinct_examples'),
            ('first = shard.dealt(first_micro_batch * plan.micro_batch_size)',
             'first = dealt(first_micro_batch * plan.micro_batch_size, 0, shard.num_shards)',
             'every shard skips as many examples as the first',
             'test_a_run_may_begin_at_any_step[False-shard-(13, 8, 3)]'),
            ('elements = elements.shard(shard.num_shards, shard.position)',
             'elements = elements.shard(shard.num_shards, 0)',
             'all shards hold the same examples',
             f'{_SHAPES}::test_every_shape_takes_the_same_examples_in_the_same_steps'),
            ('elements.shuffle(examples.shuffle_buffer or plan.num_examples, seed=seed,',
             'elements.shuffle(examples.shuffle_buffer or 1, seed=seed,',
             'nothing is shuffled',
             f'{_SHAPES}::test_one_tower_takes_each_example_once_an_epoch_in_a_new_order'),
            ('reshuffle_each_iteration=False', 'reshuffle_each_iteration=True',
             'the order of an epoch depends on more',
             f'{_SHAPES}::test_every_shape_takes_the_same_examples_in_the_same_steps',
             'each epoch makes a data set of its own, which is iterated once'),
            ('return tf.concat([[0], tf.cumsum(share_sizes(size, num_towers))], 0)',
             'return tf.concat([[0], tf.cumsum(share_sizes(size + 1, num_towers))], 0)',
             'next cuts batches at the wrong places',
             'test_every_step_takes_the_same_examples_in_every_mode'),
            ('indices = first_micro_batch + tf.range(shard.num_shards + 1, dtype=tf.int64)',
             'indices = tf.range(shard.num_shards + 1, dtype=tf.int64)',
             'a resumed shard is out of step with the others', 'test_a_run_may_begin_at_any_step'),
            ('edges = dealt_before - dealt_before[0]', 'edges = dealt_before',
             'a resumed shard cuts its batches at the wrong places',
             'test_a_run_may_begin_at_any_step'),
            ('batches = batches.concatenate(_empty_batch(batches))', 'pass',
             'a shard without examples in the last step ends its epoch before the others',
             'test_every_step_takes_the_same_examples_in_every_mode'),
            ('return batches.take(plan.micro_batches_per_epoch - first_micro_batch)',
             'return batches.take(plan.micro_batches_per_epoch)',
             'a resumed shard has an empty batch too many', 'test_a_run_may_begin_at_any_step'),
            ('tf.data.Dataset.from_tensors(epoch).repeat()',
             'tf.data.Dataset.from_tensors(epoch)',
             'an epoch of augmented arrays ends after its first batch',
             'tests/data/test_augment.py::test_augmented_arrays_are_cropped_anew_in_every_epoch_'
             'by_each_examples_draws'),
            ('elements = examples.read(elements, *arrays, epoch=epoch,',
             'elements = examples.read(elements, *arrays, epoch=start.epoch,',
             'images are augmented alike in every epoch',
             'tests/data/test_encoded_images.py::test_augmentation_is_the_same_in_every_mode_'
             'on_any_towers_and_after_a_resume[imagenet]'),
        ]),
    *mutants_of(
        'towers/input/permutation.py', tests='tests/input/test_permutation.py', faults=[
            ('_ROUNDS = 8', '_ROUNDS = 6', 'which examples are neighbours is not left to chance',
             'test_neighbours_differ_by_all_numbers_equally_often'),
            ('as_int64(GOLDEN * epoch)', 'as_int64(epoch)',
             'seeds and epochs may be exchanged', 'test_seeds_and_epochs_are_not_interchangeable '
             'test_the_order_is_what_checkpoints_count_on'),
            ('numbers[beyond] = _encipher(numbers[beyond], size, keys)',
             'numbers[beyond] %= size', 'some examples come twice where no square of a side is',
             'test_each_number_comes_once'),
        ]),
    *mutants_of(
        'towers/input/order.py', tests='tests/training/saving/test_shapes.py', faults=[
            ('if done == 0 or is_same:', 'if is_same:',
             'runs are warned of another order at the start of an epoch',
             'test_at_the_start_of_an_epoch_any_order_takes_each_example_once'),
            ('is_same = (saved or Order(None)).is_same(order)',
             'is_same = saved is None or saved.is_same(order)',
             'checkpoints of earlier versions lose examples silently',
             'test_a_checkpoint_of_an_earlier_version_is_named_in_the_middle_of_an_epoch'),
        ]),
    *mutants_of(
        'towers/input/parse.py', tests='tests/input/test_pipeline.py', faults=[
            ('return min(_MOST_AT_ONCE, _SMALL_BYTES // max(1, _count_bytes(arrays, size))) if '
             'size else 1', 'return min(_MOST_AT_ONCE, _SMALL_BYTES //\n'
             '             max(1, _count_bytes(arrays, size))) if size else _MOST_AT_ONCE',
             'batches of different sizes are put together',
             'test_batches_that_are_gathered_at_once_are_the_same test_small_batches_are_'
             'gathered_several_at_a_time'),
        ]),
    *mutants_of(
        'towers/input/pipeline.py', tests='tests/input/test_pipeline.py', faults=[
            ('for position in range(plan.rank, num_shards, plan.num_workers)]',
             'for position in range(num_iterators)]',
             'every worker takes the shards of the first',
             'test_workers_share_every_step_and_each_stays_with_its_own_positions'),
            ('start.micro_batch: step_in_epoch * plan.accumulate,',
             'start.micro_batch: step_in_epoch,',
             'a resumed run with accumulation enters too early',
             'tests/reduce/test_accumulate.py::test_a_resumed_run_equals_the_uninterrupted_one'),
            ('start.epoch: epoch,', 'start.epoch: 0,',
             'a resumed run shuffles as in the first epoch',
             'test_a_run_may_begin_at_any_step[True-split-(13, 8, 3)]'),
            ('sizes = share_sizes(leading_size(batch, tf.int32), plan.num_towers)',
             'sizes = share_sizes(leading_size(batch, tf.int32) + 1, plan.num_towers)',
             'split gives one tower an example too many',
             'test_every_step_takes_the_same_examples_in_every_mode'),
            ('with tf.control_dependencies(tf.nest.flatten(batches[-1]) if batches else []):',
             'with tf.control_dependencies([]):', 'the towers take their batches in any order',
             'test_towers_take_their_batches_in_their_order'),
            ('with tf.control_dependencies(initializers[-1:]):',
             'with tf.control_dependencies([]):', 'only the last shard is started',
             'test_the_seed_decides_the_order[shard]'),
            ('may_be_empty = plan.may_leave_a_tower_empty or marks_bad',
             'may_be_empty = plan.may_leave_a_tower_empty',
             'a tower whose examples are all damaged gets no row that fills its batch',
             'tests/data/test_encoded_images.py::test_a_step_of_bad_records_alone_is_empty_and_'
             'the_next_is_not'),
            ('lambda tensor: tf.boolean_mask(tensor, is_good)', 'lambda tensor: tensor',
             'damaged rows are trained on',
             'tests/data/test_skipped_steps.py::test_towers_of_what_is_left_are_one_tower'),
        ]), *mutants_of(
            'towers/input/fill.py', tests='tests/input/test_fill.py', faults=[
                ('any_batch = _choose(count > 0, batch, any_batch)', 'pass',
                 'an empty tower gets zeros where another has an example',
                 'test_an_empty_tower_has_an_example_of_another[split-3-17-keep-None]'),
                ('row = [tensor[:1] for tensor in any_batch]', 'row = any_batch',
                 'an empty tower gets all examples of another',
                 'test_an_empty_tower_has_an_example_of_another[shard-3-18-keep-bad2]'),
                ('_choose(count > 0, batch, row))', '_choose(count > 1, batch, row))',
                 'a tower of one example gets one of another',
                 'tests/input/test_pipeline.py::'
                 'test_every_step_takes_the_same_examples_in_every_mode'),
            ]), *mutants_of(
            'tensorflow_v1/data_sets.py', tests='tests/input/test_structures.py', faults=[
                ('return dataset_ops.DatasetV1Adapter(batching._UnbatchDataset(dataset))',
                 'return dataset.apply(tf.data.experimental.unbatch())',
                 'one array alone cannot be fed (on 1.14)',
                 'test_a_batch_keeps_its_structure_and_every_example[one_array-split-2-0-16]'),
            ]), *mutants_of(
                'towers/input/wait.py', tests='tests/input/test_wait.py', faults=[
                    ('with tf.control_dependencies([after]):', 'with tf.control_dependencies([]):',
                     'the time that towers compute counts as waiting',
                     'test_what_happens_beside_the_towers_is_no_wait[1]'),
                ]),
    *mutants_of(
        'staging/area.py', tests='tests/staging/test_area.py', faults=[
            ('capacity=depth + 1)', 'capacity=depth)',
             'an area has no room for the batch that is put before one is taken',
             'tests/input/test_feed.py::test_areas_stand_on_their_towers'),
            ('clears = self._of_each(lambda area, _: area.clear())',
             'clears = self._of_each(lambda area, _: tf.no_op())',
             'a run that starts anew takes batches of before',
             'tests/input/test_feed.py::test_any_pattern_of_switching_and_resetting[1-split-1]'),
            ('is_balanced = tf.equal(size, depth) if is_ordered else size >= depth',
             'is_balanced = tf.greater(size, 0) if is_ordered else size >= depth',
             'a batch that was put twice is not told',
             'test_an_area_out_of_balance_fails_every_run_until_its_feed_starts_again'),
            ('puts[tower]._add_control_input(check)', 'pass',
             'a run that fails still puts, and the next one goes on',
             'test_an_area_out_of_balance_fails_every_run_until_its_feed_starts_again'),
            ('with tf.control_dependencies([op]):', 'with tf.control_dependencies([]):',
             'who fetches a loss puts no batch',
             'test_a_loss_an_update_and_a_validation_put_by_themselves'),
        ]), *mutants_of(
            'towers/input/feed.py', tests='tests/input/test_feed.py',
            faults=[('for _ in range(self.stage.depth):', 'for _ in range(1):',
                     'staging is one deep, however deep it shall be',
                     'test_exactly_as_many_batches_wait_as_the_stage_is_deep[2-split]'),
                    ('      flat = tf.cond(is_validating, lambda: sum(_take(validation), []),\n'
                     '                     lambda: sum(_take(train), []), strict=True)',
                     '      flat = tf.cond(is_validating, lambda: sum(_take(train), []),\n'
                     '                     lambda: sum(_take(validation), []), strict=True)',
                     'training and validation are swapped without staging',
                     'test_any_pattern_of_switching_and_resetting[1-split-0]'),
                    ('may_be_empty = any(template.may_be_empty for template in templates)',
                     'may_be_empty = templates[0].may_be_empty',
                     'NaN of the row that fills an empty validation batch is measured',
                     'tests/test_exactness.py::test_an_empty_validation_tower_measures_nothing'),
                    ('if is_static and len({template.num_examples for template in templates}) '
                     '== 1:', 'if is_static:',
                     'validation counts as many examples as training',
                     'tests/input/test_structures.py::test_splits_of_other_sizes_count_their_own_'
                     'examples'),]),
    *mutants_of(
        'towers/input/batch.py', tests='tests/tower/test_tower.py', faults=[
            ('num_rows = tf.where(has_examples, tf.size(value.indices), 0)',
             'num_rows = tf.size(value.indices)',
             'the row that fills an empty batch touches a row of a sparse variable',
             'test_an_empty_tower_touches_no_row_of_a_sparse_variable'),
            ('tf.where(has_examples, value, tf.zeros_like(value))',
             'value * tf.cast(has_examples, value.dtype)', 'zero times NaN is NaN',
             'test_a_row_that_only_fills_an_empty_tower_cannot_spoil_the_step[False-split]'),
        ]),
    *mutants_of(
        'towers/base/usage_error.py', tests='tests/test_numbers_of_towers.py', faults=[
            ('if first != second:', 'if first < second:', 'more batches than devices are cut off',
             'test_a_message_names_both_numbers_and_the_fix'),
        ]),
]
