"""What a step does to variables, and what it leaves undone."""

from tests.mutants.mutant import mutants_of

_NUMPYS = 'test_averages_are_numpys_to_the_bit_and_training_never_sees_them'
_INTERRUPTED = 'test_a_pass_that_is_interrupted_leaves_weights_and_averages_in_place'

MUTANTS = [
    *mutants_of(
        'towers/optimizers/adamw.py', tests='tests/optimizers/test_optimizers.py', faults=[
            ('if not self._weight_decay or var.shape.ndims < 2:',
             'if not self._weight_decay or var.shape.ndims < 1:', 'biases decay under adamw',
             'test_they_are_numpys_on_any_towers[adamw-2]'),
        ]),
    *mutants_of(
        'towers/optimizers/lamb.py', tests='tests/optimizers/test_optimizers.py', faults=[
            ('rate *= tf.where(has_both, ratio, tf.ones_like(ratio))', 'rate *= ratio',
             'weights of 0 never move under lamb',
             'test_without_gradient_or_weight_layers_keep_their_rate'),
        ]),
    *mutants_of(
        'towers/training/build.py', tests='tests/optimizers/test_optimizers.py', faults=[
            ('weight_decay=0.0 if config.optimizer in DECAYING else config.weight_decay,',
             'weight_decay=config.weight_decay,', 'weights decay twice under adamw, lars and lamb',
             'test_they_are_numpys_on_any_towers[lars-2]'),
        ]),
    *mutants_of(
        'towers/update/apply.py', tests='tests/graph/test_state.py', faults=[
            ('update_ops = list(reduced.towers[0].update_ops)',
             'update_ops = list(reduced.towers[-1].update_ops)',
             "the last tower's state counts, which clones do not have",
             'test_the_first_towers_last_micro_batch_counts_once[next-3-1-settings1]'),
        ]),
    *mutants_of(
        'towers/update/groups.py', tests='tests/update/test_groups.py', faults=[
            ('rates[factor] = rates[1.0] * factor', 'rates[factor] = rates[1.0]',
             'all variables have the same rate',
             'test_towers_train_as_a_program_by_hand[factors-2-settings2]'),
            ('key = (id(optimizer), factor)', 'key = (patterns[name], factor)',
             "an optimizer's powers of beta move once for each pattern",
             'test_one_object_updates_all_its_variables_at_once'),
        ]),
    *mutants_of(
        'towers/tower/tower.py', tests='tests/update/test_groups.py', faults=[
            ('    freeze_variables(call.frozen)', '    freeze_variables(())',
             'nothing is frozen', 'test_frozen_variables_have_no_gradient_ops[host]'),
        ]),
    *mutants_of(
        'towers/warm_start/warm_start.py', tests='tests/warm_start/test_warm_start.py', faults=[
            ('for variable in [*taken.values(), *followers]], {',
             'for variable in taken.values()], {',
             'a copy of a weight starts from its random value',
             'test_what_starts_from_a_weight_starts_from_the_files'),
            ('if variable.dtype.base_dtype.is_floating or variable.trainable}',
             'if variable.trainable}', 'moving averages start anew',
             'test_all_towers_start_and_train_alike[1-host-settings0]'),
        ]),
    *mutants_of(
        'towers/warm_start/matching.py', tests='tests/warm_start/test_matching.py', faults=[
            ("refused = [line for line in differ if line.split(' ')[0] not in anew]",
             'refused = []', 'a shape that differs starts anew in silence',
             'test_what_does_not_fit_is_refused'),
            ('if other is None or rule is not None:', 'if other is None or rule is None:',
             'a renamed tensor gives way to one that has the name',
             'test_a_renamed_tensor_comes_before_one_that_has_the_name'),
        ]),
    *mutants_of(
        'towers/training/resume.py', tests='tests/warm_start/test_warm_start.py', faults=[
            ('if checkpoints and not checkpoints.is_empty():', 'if checkpoints is None:',
             'a resume needs the file of initial weights',
             'test_a_run_resumes_without_the_file'),
        ]),
    *mutants_of(
        'towers/update/averages.py', tests='tests/update/test_averages.py', faults=[
            ('tf.maximum(9 / (11 +', 'tf.maximum(9 / (10 +', 'averages count steps from 0',
             f'{_NUMPYS}[split-3-1-host, clone]'),
            ('with tf.control_dependencies([after]):', 'with tf.name_scope(None):',
             'weights may be read before they are updated', f'{_NUMPYS}[split-3-1-host, clone]'),
            ('      if session.run(self.is_exchanged):\n        session.run(self.exchange_op)',
             '      session.run(self.exchange_op)',
             'Ctrl-C before a pass leaves the averages in training', _INTERRUPTED),
            ('    try:\n      session.run(self.exchange_op)\n      yield\n    finally:\n',
             '    session.run(self.exchange_op)\n    yield\n    if True:\n',
             'a pass that ends early leaves the averages in training', _INTERRUPTED),
        ]),
    *mutants_of(
        'towers/training/saving/restore.py', tests='tests/update/test_averages.py', faults=[
            ('      session.run(self._averages.start_op)\n', '',
             'averages that are turned on start from initial weights',
             'test_a_resume_goes_on_to_the_bit_and_may_turn_them_on_or_off'),
        ]),
    *mutants_of(
        'towers/training/tools/export.py', tests='tests/update/test_averages.py', faults=[
            ('averages.get(name, name)', 'name',
             'what is exported is not what was validated',
             'test_a_program_validates_exports_and_starts_again_from_them'),
            ('if averages and AVERAGES_TENSOR not in shapes:', 'if False:',
             'an average of the model itself is exported for its weight',
             'test_an_average_of_the_model_itself_is_not_exported_for_its_weight'),
        ]),
    *mutants_of(
        'towers/update/slots.py', tests='tests/update/test_slots.py', faults=[
            ('device=variable.device)',
             "device='/device:CPU:0')",
             'slots do not stand with their variables',
             'test_slots_stand_with_their_variables_and_cost_one_import[balanced]'),
            ('tf.add_to_collection(tf.GraphKeys.GLOBAL_VARIABLES, made)',
             'pass',
             'checkpoints hold no momenta',
             'test_slots_made_at_once_are_those_of_the_optimizer'),
        ]),
    *mutants_of(
        'towers/update/apply.py', tests='tests/test_exactness.py', faults=[
            ('variable.shape.ndims < 2',
             'variable.shape.ndims < 1',
             'biases decay',
             'test_towers_train_as_a_program_without_towers[sgd]'),
            ('return tf.convert_to_tensor(gradient) + weight_decay * variable.read_value()',
             'return tf.convert_to_tensor(gradient) - weight_decay * variable.read_value()',
             'weights grow instead of decaying',
             'test_towers_train_as_a_program_without_towers[sgd]'),
            ('for gradients in [decayed.gradients, *decayed.replicas]',
             'for gradients in [reduced.gradients, *reduced.replicas]',
             'nothing decays',
             'test_towers_train_as_a_program_without_towers[sgd]'),
            ('for gradients in [decayed.gradients, *decayed.replicas]',
             'for gradients in [decayed.gradients]',
             'copies of variables are not updated',
             'tests/placement/test_replicas.py::test_they_train_as_shared_variables_'
             'do[momentum-reuse]'),
            ('with tf.control_dependencies([applied, *shares.values()]), tf.device(HOST):',
             'with tf.device(HOST):',
             'the counters may move before the rate is read',
             'tests/tower/test_tower.py::test_counters_move_behind_the_update'),
            ('get_examples_seen().assign_add(seen, read_value=False)]',
             'get_examples_seen().assign_add(one, read_value=False)]',
             'examples are counted in steps',
             'tests/tower/test_tower.py::test_counters_count_updates_and_examples'),
            ('with tf.control_dependencies([done, reduced.loss])',
             'with tf.control_dependencies([reduced.loss])',
             'sums may be cleared before they are applied',
             'tests/reduce/test_accumulate.py::test_sums_are_cleared_behind_the_update'),
        ]),
    *mutants_of(
        'towers/update/guard.py', tests='tests/update/test_guard.py', faults=[
            ('return _all_finite([reduced.loss] + [gradient for gradient, _ in '
             'reduced.gradients])',
             'return _all_finite([reduced.loss])',
             'gradients that are NaN are applied',
             'test_a_step_that_is_not_finite_changes_nothing_and_is_skipped[momentum-inf] test_'
             'the_tower_and_the_first_variable_are_named'),
            ('with tf.control_dependencies([gate]):',
             'with tf.control_dependencies([]):',
             'the update does not wait for the guard',
             'test_a_step_that_is_not_finite_changes_nothing_and_is_skipped'),
            ('return tf.raw_ops.Merge(inputs=[done, no])[0]',
             'return tf.raw_ops.Merge(inputs=[gate, no])[0]',
             'a step is told to be done before it is',
             'tests/test_exactness.py::test_towers_equal_one_tower[split-2-0]'),
            ('write.wait_for(gate.op)',
             'pass',
             'moving averages become NaN',
             'test_a_step_that_is_not_finite_changes_nothing_and_is_skipped[adam, batch '
             'norm-inf]'),
            ('no = _put_back(held, tf.identity(no))',
             'pass',
             'what is updated in place stays NaN',
             'tests/graph/test_writes.py::test_an_update_in_place_is_undone[assign]'),
        ]),
    *mutants_of(
        'towers/tower/precision.py', tests='tests/tower/test_precision.py', faults=[
            ('LossScale(value, 1 / value, variable, good_steps)',
             'LossScale(value, 2 / value, variable, good_steps)',
             'gradients are twice as large',
             'test_a_scale_changes_nothing_but_what_would_be_lost[None-0.3] test_towers_equal_'
             'one_tower_of_float32_but_for_rounding'),
            ('larger = tf.minimum(2 * loss_scale.value, _LARGEST_SCALE)',
             'larger = 2 * loss_scale.value',
             'the scale grows without end',
             'test_the_scale_grows_after_good_steps_up_to_a_limit'),
            ('grows = good_steps >= _GOOD_STEPS',
             'grows = good_steps > _GOOD_STEPS',
             'the scale grows a step late',
             'test_the_scale_grows_after_good_steps_up_to_a_limit'),
            ('        loss_scale.good_steps.assign(tf.where(grows, tf.zeros_like(good_steps), '
             'good_steps),\n'
             '                                     read_value=False))',
             '        loss_scale.good_steps.assign(good_steps, read_value=False))',
             'good steps are counted on after the scale has grown',
             'test_the_scale_grows_after_good_steps_up_to_a_limit'),
            ('if loss_scale is None and dtype == tf.bfloat16:',
             'if loss_scale is None:',
             'float16 has no scale that adapts',
             'test_gradients_too_small_for_half_are_saved_by_a_scale[None-True]'),
        ]),
    *mutants_of(
        'towers/graph/writes.py', tests='tests/graph/test_writes.py', faults=[
            ('if num_towers > 1 or accumulates:',
             'if num_towers > 1:',
             'an update in place runs for every micro-batch',
             'test_writes_that_towers_would_repeat_are_refused_by_name'),
            ('if variable.name in trained:',
             'if variable.name not in trained:',
             'updates of copied weights are taken',
             'test_writes_that_towers_would_repeat_are_refused_by_name'),
            ("'ReadVariableOp', 'VarIsInitializedOp',",
             "'VarIsInitializedOp',",
             'a read counts as a write',
             'test_reads_are_not_writes'),
            ('yield op, frame',
             "yield op, ''",
             'a write in a loop is told to wait, which nothing in a loop can',
             'test_a_refused_step_changes_no_variable'),
        ]),
]
