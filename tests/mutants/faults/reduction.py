"""Gradients and statistics, summed over towers, micro-batches and workers."""

from tests.mutants.mutant import mutants_of

MUTANTS = [
    *mutants_of(
        'towers/reduce/gradients.py', tests='tests/tower/test_tower.py', faults=[
            ('      return self._replace(gradients=change_all(self.gradients),\n'
             '                           replicas=[change_all(replica) for replica in '
             'self.replicas])', '      return self._replace(gradients=change_all(self.gradients), '
             'replicas=self.replicas)',
             'gradients are clipped and decayed for the first copy alone',
             'tests/placement/test_replicas.py::test_they_train_as_shared_variables_do[clipped, '
             'decayed, accumulated-clone]'),
            ('if any(share is not None for share in shares)',
             'if all(share is not None for share in shares)',
             'a variable that one tower does not use is not trained',
             'test_a_gradient_that_some_towers_lack_counts_as_zero_there_and_is_listed'),
            ('loss = add_all(losses)', 'loss = losses[0]', 'the loss is that of one tower',
             'tests/test_exactness.py::test_towers_equal_one_tower[split-2-0]'),
            ('_scale(gradient, loss_scale.inverse)', '_scale(gradient, loss_scale.value)',
             'gradients are multiplied by the loss scale once more',
             'tests/tower/test_precision.py::test_a_scale_changes_nothing_but_what_would_be_'
             'lost[1024.0-None]'),
            ('scale = tf.minimum(max_norm / tf.maximum(_find_norm(merged), 1e-30), 1.0)',
             'scale = max_norm / tf.maximum(_find_norm(merged), 1e-30)',
             'small gradients are scaled up to the norm',
             'test_clipping_is_by_the_norm_of_the_averaged_gradients[1]'),
            ('scale = tf.minimum(max_norm / tf.maximum(_find_norm(merged), 1e-30), 1.0)',
             'scale = tf.maximum(max_norm / tf.maximum(_find_norm(merged), 1e-30), 1.0)',
             'min and max are confused in clipping',
             'test_clipping_is_by_the_norm_of_the_averaged_gradients[1]'),
            ('merged = _merge_all_rows(reduced)', 'merged = reduced',
             'rows that are there twice make the norm too small',
             'test_rows_with_the_same_index_are_added_up_before_the_norm_is_taken'),
            ('return _find_norm(_merge_all_rows(reduced))', 'return _find_norm(reduced)',
             'the norm that is shown counts rows that are there twice apart',
             'test_rows_with_the_same_index_are_added_up_before_the_norm_is_taken'),
            ('return tf.IndexedSlices(gradient.values * scale, gradient.indices, gradient.dense_'
             'shape)', 'return gradient', 'sparse gradients are not clipped',
             'test_rows_with_the_same_index_are_added_up_before_the_norm_is_taken'),
            ('values = tf.unsorted_segment_sum(slices.values, positions, tf.size(indices))',
             'values = tf.unsorted_segment_max(slices.values, positions, tf.size(indices))',
             'of rows that are there twice one counts',
             'test_rows_with_the_same_index_are_added_up_before_the_norm_is_taken'),
            ('        for number, total in zip(\n'
             '            group, part(add_all(joined), [by_variable[number][0] for number in '
             'group])):', '        for number, total in zip(group, part(joined[0],\n'
             '                                             [by_variable[number][0] for number in '
             'group])):', "of small gradients only the first tower's counts",
             'tests/test_exactness.py::test_towers_equal_one_tower[split-2-1]'),
            ('part(add_all(joined), [by_variable[number][0] for number in group])',
             'part(add_all(joined), [by_variable[number][0] for number in reversed(group)])',
             'small gradients that travelled together are taken for each other',
             'tests/placement/test_fusion.py::test_no_bit_changes_of_kernels_that_are_alike[reuse]'
            ),
            ('rows = _merge_rows(_sum_shares(found))', 'rows = _sum_shares(found[:1])',
             "of sparse gradients only the first tower's counts",
             'tests/placement/test_replicas.py::test_they_train_as_shared_variables_'
             'do[sparse-clone]'),
            ('rows = _merge_rows(_sum_shares(found))', 'rows = _sum_shares(found)',
             'rows of copies are received on unmerged',
             'tests/placement/test_replicas.py::test_they_train_as_shared_variables_'
             'do[sparse-clone]',
             'the optimizer merges rows with the same index itself; merged before, they are '
             'fewer to copy'),
            ('losses.append(tower.loss if tower.put_op is None else',
             'losses.append(tower.loss if True else', 'who fetches a loss puts no batch',
             'tests/staging/test_area.py::test_a_loss_an_update_and_a_validation_put_by_'
             'themselves'),
        ]),
    *mutants_of(
        'towers/reduce/average.py', tests='tests/reduce/test_accumulate.py', faults=[
            ('if accumulate > 1:', 'if accumulate > 2:', 'two micro-batches are not accumulated',
             'test_runs_and_towers_equal_one_big_batch[split-1-0-2]'),
        ]),
    *mutants_of(
        'towers/reduce/all_reduce.py', tests='tests/reduce/test_workers.py', faults=[
            ('    tail = tf.concat([\n'
             '        tf.stack([tf.cast(reduced.loss, tf.float32) * own, own, step,\n'
             '                  tf.square(step)]),\n'
             '        requests.read_value()\n'
             '    ], 0)',
             '    tail = tf.concat([tf.stack([tf.cast(reduced.loss, tf.float32), own, step, '
             'tf.square(step)]),\n'
             '                      requests.read_value()], 0)',
             "the workers' losses are not weighted by their examples",
             'test_they_are_one_tower[(2, 2)-next-0-(13, 8)-host]'),
            ('sent = [tail if place == 0 else tf.zeros_like(tail)]', 'sent = [tail]',
             'each tower tells what its worker tells once',
             'test_they_are_one_tower[(2, 2)-next-0-(13, 8)-replicated]'),
            ('_take_apart(gradient, variable, None if is_even else own)',
             '_take_apart(gradient, variable, None)',
             "the workers' gradients are not weighted by their examples",
             'test_they_are_one_tower[(2, 2)-next-0-(13, 8)-host]'),
            ('is_told = place > 0 and isinstance(gradient, tf.IndexedSlices)', 'is_told = False',
             'rows that all copies have count once for each',
             'test_sparse_gradients_stay_sparse_and_touch_no_other_row[replicated-momentum]'),
            ('is_same = tf.equal(workers.num_workers * squares, tf.square(steps))',
             'is_same = tf.equal(workers.num_workers * steps, workers.num_workers * steps)',
             'workers at different steps train on',
             'test_workers_at_different_steps_change_nothing_and_say_so'),
            ('scale = 1.0 / workers.num_workers if is_even', 'scale = 1.0 if is_even',
             'gradients of workers are summed and not averaged',
             'test_they_are_one_tower_where_all_sizes_are_known[replicated]'),
            ('tf.where(received.pop(0) > 0)', 'tf.where(received.pop(0) >= 0)',
             'a sparse gradient touches every row',
             'test_sparse_gradients_stay_sparse_and_touch_no_other_row[replicated-momentum]'),
            ('      num_examples=reduced.num_examples *\n'
             '      workers.num_workers if is_even else tf.cast(count, tf.int64))',
             '      num_examples=reduced.num_examples if is_even else tf.cast(count, tf.int64))',
             'the counter counts the examples of one worker',
             'test_they_are_one_tower_where_all_sizes_are_known[replicated]'),
        ]),
    *mutants_of(
        'towers/placement/collectives.py', tests='tests/reduce/test_collectives.py', faults=[
            ('if not fused_group or filled + size > fusion_bytes:',
             'if not fused_group or filled >= fusion_bytes:',
             'fused groups are larger than the limit',
             'test_every_gradient_is_fused_once_with_its_dtype_below_the_limit[0]'),
            ('for number in reversed(range(len(sizes))):', 'for number in range(len(sizes)):',
             'the gradients that are known last are sent first',
             'test_small_and_large_gradients_are_fused_the_last_first'),
            ('with tf.control_dependencies([other.op for other in fused]):',
             'with tf.control_dependencies([]):', 'a sum that is fetched alone waits for ever',
             'tests/placement/test_replicas.py::test_one_gradient_alone_can_be_fetched'),
            ('                    [(shares[0][number].dtype, shares[0][number].shape) for number '
             'in numbers],\n'
             '                    group_size)',
             '                    [(shares[0][number].dtype, shares[0][number].shape) for number '
             'in numbers])', 'groups of different sizes share their keys',
             'test_keys_are_those_of_all_workers_and_tell_collectives_apart_that_differ'),
            ('value.shape.num_elements() * value.dtype.size)', 'value.shape.num_elements())',
             'fused groups are counted in elements',
             'test_the_sums_are_the_sums_on_every_tower_to_the_bit[3-60]'),
            ('while _LOWEST_KEY + key % _LOWEST_KEY in keys:', 'while key in keys:',
             'keys with the same digest are shared',
             'test_keys_differ_though_their_digests_are_the_same'),
        ]),
    *mutants_of(
        'towers/placement/fusion.py', tests='tests/placement/test_fusion.py', faults=[
            ('      groups.setdefault((device, tensor.dtype, axis, tuple(sizes[:axis] + sizes[axis '
             '+ 1:])),\n'
             '                        []).append(number)',
             '      groups.setdefault((device, tensor.dtype, axis, tuple(sizes[:axis])), '
             '[]).append(number)', 'tensors that differ in more are joined',
             'test_alike_is_what_differs_along_its_longest_axis_alone'),
            ('tensor.shape.num_elements() * tensor.dtype.size <= _LARGEST_BYTES',
             'tensor.shape.num_elements() <= _LARGEST_BYTES', 'large tensors are copied',
             'test_what_is_large_sparse_missing_or_of_another_kind_travels_alone'),
            ('groups.setdefault((device, tensor.dtype, axis,',
             'groups.setdefault((tensor.dtype, axis,',
             'what stands on different devices travels together',
             'test_what_is_large_sparse_missing_or_of_another_kind_travels_alone'),
            ('return sizes.index(max(sizes))', 'return sizes.index(min(sizes))',
             'the shortest axis is taken',
             'test_alike_is_what_differs_along_its_longest_axis_alone'),
        ]),
    *mutants_of(
        'towers/tower/batch_norm.py', tests='tests/tower/test_batch_norm.py', faults=[
            ('weights, workers = tf.one_hot(tf.argmax(tf.minimum(examples, 1.0)), len(counts)), '
             'ALONE', 'weights, workers = tf.one_hot(tf.argmax(examples), len(counts)), ALONE',
             'first is the tower with the most examples',
             'test_first_is_the_first_tower_that_has_examples'),
            ("return kind == 'mean' or kind == 'first' and not all(isinstance(count, int) for "
             'count in counts)', "return kind == 'mean'", 'an empty first tower moves the averages',
             'test_first_is_the_first_tower_that_has_examples'),
            ('weights = [tf.minimum(count, 1) for count in counts]', 'weights = list(counts)',
             'sums over examples are weighted by examples once more',
             'test_with_sync_towers_equal_one_tower[split-2-2]'),
            ('for collection, scale in ((BATCH_SUMS, None), (BATCH_SUM_GRADIENTS, examples)):',
             'for collection, scale in ((BATCH_SUMS, None),):',
             'the backward pass is not synchronised',
             'test_with_sync_towers_equal_one_tower[split-2-2]'),
            ('weights = examples / tf.maximum(sum_over_workers(tf.reduce_sum(examples), '
             'workers), 1.0)', 'weights = tf.ones_like(examples) / len(counts)',
             'the mean of towers is not weighted by their examples',
             'test_averages_move_once_a_step_by_the_moments_of_their_kind[3-mean]'),
            ('return sum_over_workers(add_all(parts) * scale, workers) / scale',
             'return sum_over_workers(add_all(parts), workers)',
             'gradients of unequal workers are not weighted by their examples',
             'tests/reduce/test_workers.py::test_with_sync_batch_norm_they_are_one_tower[17-(3, '
             '1)]'),
            ('parts.append(weight * tf.where(weight > 0, part, tf.zeros_like(part)))',
             'parts.append(weight * part)', 'NaN of an empty tower spoils the averages',
             'test_empty_towers_have_no_part'),
            ('if averages and not update_ops and not find_step_writes([loss]).early:',
             'if averages and update_ops is None:',
             'a model whose averages nothing updates is taken',
             'test_what_would_silently_go_wrong_is_refused[stale-first-Nothing updates moving_'
             'mean]'),
        ]),
    *mutants_of(
        'towers/placement/replicas.py', tests='tests/placement/test_replicas.py', faults=[
            ('tf.equal(_bits(copy.read_value()), _bits(value))',
             'tf.equal(copy.read_value(), value)', 'copies that are NaN alike count as different',
             'test_a_copy_that_differs_is_named_and_nothing_is_saved'),
            ("settings['collections'] = [REPLICAS]",
             "settings['collections'] = [tf.GraphKeys.GLOBAL_VARIABLES]",
             'checkpoints hold the slots of every copy',
             'test_checkpoints_fit_every_placement_and_number_of_towers[ours0-other0]'),
            ('self._known = set(step_ops)', 'self._known = set()',
             'a step updates every copy twice',
             'test_they_train_as_shared_variables_do[momentum-reuse]'),
            ('before_each_run(graph, self.follow)', 'pass',
             'a saver that is made later restores the first copy alone',
             'test_whatever_writes_weights_writes_all_copies'),
            ('for copy in self._copies[first]:', 'for copy in self._copies[first][:1]:',
             'of several copies the first follows a restore',
             'test_whatever_writes_weights_writes_all_copies'),
        ]), *mutants_of(
            'towers/graph/ordered_sum.py', tests='tests/graph/test_ordered_sum.py', faults=[
                ('len(op.inputs) > 2', 'len(op.inputs) > 3', 'three terms are added in any order',
                 'test_terms_that_somebody_holds_are_added_in_their_order'),
            ]),
    *mutants_of(
        'towers/reduce/broadcast.py', tests='tests/reduce/test_workers.py', faults=[
            ('if variable.op.name not in trained and', 'if variable.op.name in trained and',
             'before validation the trained variables are broadcast in place of the moving '
             'averages', 'test_moving_averages_are_those_of_as_many_towers_of_one_worker[first]'),
            ('return Broadcast(_broadcast(variables, workers)',
             'return Broadcast(_broadcast(untrained, workers)',
             'workers start from weights of their own',
             'test_the_chiefs_state_becomes_that_of_all'),
            ('is_source = workers.rank == 0',
             'is_source = workers.rank == workers.num_workers - 1',
             "the last worker's state becomes that of all",
             'test_the_chiefs_state_becomes_that_of_all'),
        ]),
    *mutants_of(
        'towers/reduce/accumulate.py', tests='tests/reduce/test_accumulate.py', faults=[
            ("loss = add(reduced.loss, HOST, 'loss') / num_examples", 'loss = reduced.loss',
             'the loss is that of the last micro-batch',
             'test_runs_and_towers_equal_one_big_batch[split-1-0-2]'),
            ('clears = [run.assign(0, read_value=False)]', 'clears = []',
             'micro-batches are counted on over steps',
             'test_a_resumed_run_equals_the_uninterrupted_one'),
            ('with tf.control_dependencies([total.add_op]), tf.device(total.variable.device):',
             'with tf.device(total.variable.device):',
             'a sum may be cleared before the last micro-batch is added',
             'tests/update/test_guard.py::test_what_a_step_that_is_not_done_adds_last_is_'
             'cleared_as_well'),
            ('tf.where(tf.greater(touched.read_value(), 0))',
             'tf.where(tf.greater_equal(touched.read_value(), 0))',
             'rows that nothing touched are updated',
             'test_sparse_gradients_stay_sparse_and_touch_no_other_row[momentum]'),
            ('moments.op._update_input(0, mean)', 'pass',
             'batch statistics are those of the last micro-batch',
             'test_averages_of_batch_normalisation_move_once_by_the_mean_of_all_runs'),
            ('added = total.assign_add(value * tf.cast(weight, value.dtype), read_value=False)',
             'added = total.assign_add(value, read_value=False)',
             'micro-batches are not weighted by their examples',
             'test_runs_and_towers_equal_one_big_batch[split-1-0-2]'),
            ('        total.scatter_add(\n'
             '            tf.IndexedSlices(slices.values * tf.cast(weight, slices.values.dtype), '
             'slices.indices)),',
             '        total.scatter_add(tf.IndexedSlices(slices.values, slices.indices)),',
             'sparse gradients of micro-batches are not weighted',
             'test_sparse_gradients_stay_sparse_and_touch_no_other_row[sgd]'),
            ('gradient_weight = count * reduced.towers[0].num_micro_batches',
             'gradient_weight = count', 'gradients are divided by the number of micro-batches',
             'test_runs_and_towers_equal_one_big_batch[split-1-0-2]'),
        ]),
]
