"""The loop, and what it keeps."""

from tests.mutants.mutant import mutants_of

MUTANTS = [
    *mutants_of(
        'towers/training/stepping/shortage.py', tests='tests/training/test_fitting.py', faults=[
            ("if op in waiting or op.type in ('Merge', 'RefMerge'):", 'if op in waiting:',
             'what a merge passes on without waiting passes for waiting',
             'test_an_op_that_no_write_waits_for_proves_nothing'),
            ("if steps.activity == 'warm-up':", "if steps.activity != 'validation':",
             'half an update is kept',
             'test_half_an_update_is_undone_by_going_back_to_the_last_checkpoint[5-goes_back0]'),
        ]),
    *mutants_of(
        'towers/input/micro_batches.py', tests='tests/training/test_fitting.py', faults=[
            ('if number >= 2 * plan.accumulate', 'if number > plan.accumulate',
             'a step without memory is tried again with little less',
             'test_more_micro_batches_are_a_plan_with_smaller_shares_until_there_are_none'),
        ]),
    *mutants_of(
        'towers/training/run.py', tests='tests/training/test_fitting.py', faults=[
            ('if snapshot.step and not checkpoints.has_saved(snapshot.step):', 'if False:',
             'a signal while the graph is built again loses steps',
             'test_a_run_that_is_ended_while_it_is_built_again_has_saved_its_last_step'),
        ]),
    *mutants_of(
        'towers/training/resume.py', tests='tests/training/test_fitting.py', faults=[
            ('    standing.restore(session)\n', '',
             'more micro-batches begin with initial weights',
             'test_a_later_step_is_taken_again_and_no_other[switch]'),
        ]),
    *mutants_of(
        'towers/launch/round.py', tests='tests/launch/test_launch.py', faults=[
            ('if cause.returncode == _START_AGAIN:', 'if False:',
             'a worker without memory counts as a failure',
             'test_a_worker_that_asks_for_a_start_again_is_no_failure[flags0]'),
        ]),
    *mutants_of(
        'towers/training/stepping/validation_pass.py', tests='tests/test_exactness.py', faults=
        [('return self._steps_left == 0', 'return self._steps_left <= 1',
          'the last validation batch is left out',
          'test_validation_is_the_mean_over_all_examples_and_nothing_else[17-False-split]'),
         ('float(total / weights.get(name, self._sums[-1]))',
          'float(total / weights.get(name, max(self._sums[-1], 16)))',
          'means are over full batches',
          'test_validation_is_the_mean_over_all_examples_and_nothing_else[11-False-split]'),
         ('self._sums = np.zeros(len(names) + len(weighted) + 1, np.float64)',
          'self._sums = np.zeros(len(names) + len(weighted) + 1, np.float32)',
          'counts end at 16,777,216',
          'tests/training/stepping/test_validation_pass.py::test_more_examples_than_float32_can_count'
         ),]),
    *mutants_of(
        'towers/training/settings/schedule.py', tests='tests/training/settings/test_schedule.py',
        faults=[
            ('if examples_seen == planned:', 'if examples_seen >= planned:',
             'a checkpoint of larger batches is taken',
             'test_a_checkpoint_of_other_batches_is_refused'),
            ('if may_skip and (1 - _MOST_SKIPPED) * planned <= examples_seen < planned:',
             'if may_skip and (1 - _MOST_SKIPPED) * planned <= examples_seen:',
             'with skipped records a checkpoint of larger batches is taken',
             'test_a_checkpoint_may_have_seen_fewer_examples_where_damaged_ones_are_skipped'),
            ('save_every, save_seconds = total_steps, count',
             'save_every, save_seconds = 1, count',
             'a checkpoint by the clock is written in every step',
             'test_a_schedule_counts_in_steps'),
        ]),
    *mutants_of(
        'towers/training/settings/learning_rate.py',
        tests='tests/training/settings/test_learning_rate.py', faults=[
            ('epochs >= tf.constant(decay_epochs, tf.float64)',
             'epochs > tf.constant(decay_epochs, tf.float64)', 'the rate falls a step late',
             'test_piecewise_falls_at_its_epochs'),
            ('tf.cos(math.pi * tf.minimum(seen / total_examples, 1.0))',
             'tf.cos(math.pi * (seen / total_examples))', 'cosine rises again after its end',
             'test_cosine_ends_at_zero_and_stays_there'),
            ('rate *= tf.minimum(epochs / warmup_epochs, 1.0)',
             'rate *= tf.maximum(epochs / warmup_epochs, 1.0)',
             'min and max are confused in the warm-up',
             'test_warm_up_rises_from_zero_in_a_straight_line'),
            ('factor = tf.pow(tf.constant(decay_rate, tf.float64), epochs / decay_epochs[0])',
             'factor = tf.pow(tf.constant(decay_rate, tf.float64),\n'
             '                      tf.floor(epochs / decay_epochs[0]))',
             'exponential falls in stairs', 'test_exponential_falls_all_the_time'),
            ('epochs = seen / examples_per_epoch', 'epochs = seen / total_examples',
             'epochs are counted in runs', 'test_piecewise_falls_at_its_epochs'),
            ('rate *= tf.cast(get_rate_factor().read_value(), tf.float64)', 'pass',
             'a run that went back keeps its rate',
             'tests/training/test_loop.py::test_not_finite_and_rollback_goes_back_with_half_the_'
             'rate_and_gives_up_at_last'),
        ]),
    *mutants_of(
        'towers/base/output.py', tests='tests/base/test_output.py', faults=[
            ("    with contextlib.suppress(OSError, ValueError):\n      stream.write(text)",
             "    with contextlib.suppress(OSError):\n      stream.write(text)",
             'a closed stream ends the run',
             'test_what_cannot_be_written_is_lost_and_fails_nothing'),
            ('      _stuck.discard(descriptor)', '      pass',
             'a reader that stood still once is never waited for again',
             'test_a_reader_that_takes_nothing_is_not_waited_for_until_it_reads_on'),
            ('os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)', 'pass',
             'a file gets the number of a closed stream, and the log goes into it',
             'test_no_file_gets_the_number_of_a_closed_stream'),
        ]),
    *mutants_of(
        'towers/base/sealed.py', tests='tests/base/test_sealed.py', faults=[
            ('if stated is not None and stated != _sum(content):', 'if False:',
             'a damaged file passes for data', 'test_no_changed_byte_changes_what_is_read'),
            ('if not set(content) <= set(members):', 'if False:',
             'a file whose checksum has lost its name passes for data',
             'test_no_changed_byte_changes_what_is_read'),
        ]),
    *mutants_of(
        'towers/training/settings/outputs.py', tests='tests/training/settings/test_outputs.py',
        faults=[
            ('      file.write(bytes(_PROBE_BYTES))', '      pass',
             'a full disk is found at the end',
             'test_a_folder_that_cannot_be_written_is_named_and_room_only_if_it_is_full'),
            ('  kind = name_other_kind(path)', "  kind = ''", 'as root a file replaces /dev/null',
             'test_files_are_refused_where_something_else_is'),
        ]),
    *mutants_of(
        'towers/base/aside.py', tests='tests/base/test_aside.py', faults=[
            ('fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)', 'pass',
             'what another process is writing is swept',
             'test_what_another_process_writes_stays_until_that_is_killed'),
            ('return os.path.samestat(os.stat(path), os.fstat(handle))', 'return True',
             'a file that was swept before its lock is written to',
             'test_a_sweep_just_before_the_lock_only_makes_another_file'),
        ]),
    *mutants_of(
        'towers/base/regular_file.py', tests='tests/base/test_aside.py', faults=[
            ('os.open(path, os.O_RDONLY | os.O_NONBLOCK)', 'os.open(path, os.O_RDWR)',
             'a folder has no kind', 'test_what_is_no_file_is_neither_replaced_nor_read'),
        ]),
    *mutants_of(
        'towers/base/default_signals.py', tests='tests/training/faults/test_signals.py', faults=[
            ('signal.signal(number, signal.SIG_DFL)', 'pass',
             'a signal has no effect while TensorFlow loads',
             'test_a_signal_ends_a_process_that_can_run_no_python'),
            ('      signal.signal(number, wake)', '      pass',
             'after the load a signal ends the run without saving',
             'test_tensorflow_loads_while_signals_end_the_process_by_themselves'),
        ]),
    *mutants_of(
        'towers/training/faults/signals.py', tests='tests/training/faults/test_signals.py', faults=[
            ("  write_at_once(f'\\ntowers: {text}\\n')",
             "  os.write(2, f'\\ntowers: {text}\\n'.encode())",
             'a message that cannot be written ends the thread that saves',
             'test_signals_save_whatever_became_of_the_streams'),
            ('if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]',
             'if True]', 'a run under nohup ends with its terminal',
             'test_under_nohup_a_closed_terminal_ends_nothing'),
        ]),
    *mutants_of(
        'towers/training/saving/history.py', tests='tests/training/saving/test_history.py', faults=[
            ("if 'loss' in metric or 'error' in metric else -1.0", "if 'loss' in metric else -1.0",
             'the largest error is the best',
             'test_errors_and_losses_are_best_when_small_and_others_when_large'),
            ('if value < smallest:', 'if value <= smallest:', 'a tie is a new best',
             'test_the_best_is_better_than_all_before_it_and_patience_counts_from_it'),
            ('return len(since) >= self._patience', 'return len(since) > self._patience',
             'patience is one longer',
             'test_the_best_is_better_than_all_before_it_and_patience_counts_from_it'),
            ("if rollback['to'] <= step]", "if rollback['to'] < step]",
             'the rollback to the resumed step is forgotten',
             'test_what_is_read_is_what_was_known_at_that_step'),
            ("validation for validation in self._validations if validation['step'] <= step",
             "validation for validation in self._validations if validation['step'] < step",
             'the validation of the resumed step is forgotten',
             'test_what_is_read_is_what_was_known_at_that_step'),
            ('return _RATE_FACTOR ** len(self._rollbacks)',
             'return _RATE_FACTOR if self._rollbacks else 1.0', 'the rate is halved once',
             'tests/training/test_loop.py::test_not_finite_and_rollback_goes_back_with_half_the_'
             'rate_and_gives_up_at_last'),
        ]),
    *mutants_of(
        'towers/training/saving/checkpoints.py', tests='tests/training/saving/test_checkpoints.py',
        faults=[
            ('kept = steps[:self._keep]', 'kept = steps[-self._keep:]',
             'the oldest checkpoints stay', 'test_only_the_newest_stay_over_a_resume_too'),
            ('for step in list_steps(self.folder) if step <= written]',
             'for step in list_steps(self.folder)]',
             'a damaged newer checkpoint is kept in place of a whole one',
             'test_a_whole_folder_of_damaged_checkpoints_never_starts_anew'),
            ('kept += [step for step in best_first if step in steps][:1]', 'pass',
             'the best checkpoint is deleted',
             'tests/training/test_loop.py::test_the_best_checkpoint_stays_and_survives_a_resume'),
            ('notes = None if history is None else (history.format(), history.best_first())',
             "notes = None if history is None else ('', history.best_first())",
             'the history is not saved',
             'tests/training/test_loop.py::test_the_best_checkpoint_stays_and_survives_a_resume'),
            ('for suffix in (DATA, INDEX):\n          os.replace(',
             'for suffix in (INDEX, DATA):\n          os.replace(',
             'killed between two renames, a checkpoint has an index and no data',
             'test_killed_between_its_two_files_a_checkpoint_is_not_there'),
        ]),
    *mutants_of(
        'towers/training/saving/files.py', tests='tests/training/saving/test_checkpoints.py',
        faults=[
            ('paths.sort(key=lambda path: -int(', 'paths.sort(key=lambda path: int(',
             'the oldest checkpoint is restored',
             'test_a_damaged_newest_checkpoint_falls_back_with_a_warning'),
            ('if os.path.realpath(os.path.dirname(path)) != here:', 'if False:',
             'a state file leads out of the folder',
             'test_the_state_file_is_not_needed_and_refused_if_it_leads_out_of_the_folder'),
        ]),
    *mutants_of(
        'towers/training/loop.py', tests='tests/training/test_loop.py', faults=[
            ('is_over = is_last or self._history.has_stopped', 'is_over = is_last',
             'nothing stops early', 'test_early_stopping_counts_over_a_resume[True]'),
            ('    if (steps.can_validate and self._running is None and step > 0 and\n'
             '        (is_last or step % schedule.validate_every == 0) and not '
             'self._history.has_validated(step)):',
             '    if (steps.can_validate and self._running is None and step > 0\n'
             '        and step % schedule.validate_every == 0 and not '
             'self._history.has_validated(step)):', 'the last weights are not in the history',
             'test_the_last_validation_is_in_the_history_though_it_is_not_the_best'),
            ('saves = not is_saved and (is_last or step % schedule.save_every == 0) and step > 0',
             'saves = not is_saved and step % schedule.save_every == 0 and step > 0',
             'the last step is not saved', 'test_checkpoints_are_when_due_and_at_the_end',
             'a run that is over saves all the same, a few lines below'),
            ('and (self._has_news or not self._has_saved()):', 'and not self._has_saved():',
             'a last validation that a signal put off is not in the history',
             'test_a_last_validation_that_a_signal_put_off_is_in_the_history'),
            ('(step // every + 1) * every', '(step // every + 2) * every',
             'what is due next is left out', 'test_validation_is_when_due_and_at_the_end[0]'),
            ('if len(self._skipped) < MOST_SKIPPED_IN_A_ROW:',
             'if len(self._skipped) <= MOST_SKIPPED_IN_A_ROW:',
             'one step more is skipped before the run ends',
             'test_not_finite_and_skip_is_the_same_after_a_resume_and_ends_if_none_is_'
             'finite'),
            ('if self._history.num_rollbacks < MOST_ROLLBACKS:',
             'if self._history.num_rollbacks <= MOST_ROLLBACKS:',
             'a run goes back once more than it may',
             'test_not_finite_and_rollback_goes_back_with_half_the_rate_and_gives_up_at_last'),
            ('steps.scale_learning_rate(self._history.rate_factor)', 'pass',
             'a run goes back with the same rate',
             'test_not_finite_and_rollback_goes_back_with_half_the_rate_and_gives_up_at_last'),
            ('self._due = to', 'pass', 'what was due before a run went back is not done again',
             'test_after_going_back_what_was_due_is_due_again'),
            ('save_at = clock() + schedule.save_seconds if schedule.save_seconds else save_at',
             'pass', 'by the clock, every later step is saved', 'test_checkpoints_by_the_clock'),
            ('if measured is None or measured.step == steps.step:', 'if True:',
             'the best checkpoint of a validation tower holds later weights',
             'test_the_best_of_a_validation_tower_is_saved_as_it_was_measured'),
        ]), *mutants_of(
            'towers/training/reporting/progress.py',
            tests='tests/training/reporting/test_progress.py', faults=[
                ('self._total_epochs = -(-total_steps // plan.steps_per_epoch)',
                 'self._total_epochs = total_steps // plan.steps_per_epoch',
                 'the last epoch is not counted if it is not whole',
                 'test_an_epoch_that_is_not_whole_counts'),
                ('self._paused_seconds += self._mark - began',
                 'self._paused_seconds = self._mark - began', 'of several pauses the last counts',
                 'test_the_time_of_all_pauses_adds_up'),
                ('self._plan.examples_before(self._step) - self._plan.examples_before(since_step)',
                 'self._plan.batch_size * (self._step - since_step)',
                 'the smaller last batch of an epoch counts as a full one',
                 'test_the_speed_counts_the_smaller_last_batch_of_an_epoch_as_what_it_is'),
            ]),
    *mutants_of(
        'towers/training/stepping/not_finite.py',
        tests='tests/training/stepping/test_not_finite.py', faults=[
            ('finite = self.finite[:, -1].all(0)', 'finite = self.finite[-1, -1]',
             'of several micro-batches the last one tells what is not finite',
             'test_towers_and_sums_of_any_micro_batch_are_named'),
            ("faults.append(f'the gradient of {self.names[int(np.argmin(finite))]} is not finite "
             "(the '",
             "faults.append(f'the gradient of {self.names[int(np.argmax(finite))]} is not finite "
             "(the '", 'a variable is named whose gradient is finite',
             'tests/update/test_guard.py::test_the_tower_and_the_first_variable_are_named'),
        ]), *mutants_of(
            'towers/launch/tf_config.py', tests='tests/launch/test_launch.py', faults=[
                ('if not 0 <= given.index < len(given.hosts):',
                 'if not 0 <= given.index <= len(given.hosts):',
                 'a worker beyond the last host is taken', 'test_mistakes_in_a_tf_config'),
            ]),
    *mutants_of(
        'towers/training/cluster/roll_call.py', tests='tests/training/cluster/test_roll_call.py',
        faults=[
            ('rank for rank in gone if rank not in reporters.seen] or gone',
             'rank for rank in gone]',
             'a worker that left since another is missing is named as missing itself',
             'test_a_worker_that_leaves_is_missing_again_unless_another_never_came'),
            ('if not 0 < rank < len(self._cluster.addresses):', 'if not 0 < rank:',
             'a worker of a larger cluster reports to the chief of a smaller one',
             'test_strangers_disturb_nobody'),
            ('counts[value], value == values[0]', 'value == values[0]',
             'a chief that differs from all others is taken for right',
             'test_the_one_that_differs_is_named'),
        ]),
    *mutants_of(
        'towers/launch/roster.py', tests='tests/launch/test_elastic.py', faults=[
            ('if 1 < len(ranks) == len(present) or', 'if',
             'all workers are left out if all fail',
             'test_enough_take_part_and_a_lost_one_returns_after_its_time'),
            ('self._began + self._retry_seconds - self._clock())', '0.0)',
             'workers are taken back right after others were lost',
             'test_more_take_part_at_most_once_in_the_time'),
            ('for place in absent[:max(0,', 'for place in absent[:min(0,',
             'too few go on', 'test_enough_take_part_and_a_lost_one_returns_after_its_time'),
        ]),
    *mutants_of(
        'towers/launch/agreement.py', tests='tests/launch/test_agreement.py', faults=[
            ('return Step(START if have_joined else WAIT)', 'return Step(START)',
             'a worker starts before all members have joined its round',
             'test_rounds_are_entered_by_all_or_none_and_all_come_together_at_last'),
            ('elif card.identity == watched.card.identity and card.beat', 'elif card.beat',
             'an agent that was replaced counts as there',
             'test_an_agent_is_alive_if_its_card_changes_while_this_host_looks_whatever_clocks_say'),
            ('min(now - self._looked, self._most_seconds)', 'now - self._looked',
             'a host that stood still takes all others for gone',
             'test_an_agent_is_alive_if_its_card_changes_while_this_host_looks_whatever_clocks_say'),
            ('has_looked and 0 < len(lineup.members) <= len(chosen)', 'False',
             'a new agent in the place of the only one waits for others that are long gone',
             'test_the_first_round_waits_for_all_for_some_time'),
            ('if 1 < len(lost) == len(lineup.members):', 'if False:',
             'all but the least are left out if all fail',
             'test_those_that_rest_take_part_if_others_are_too_few_or_if_no_worker_is_to_blame'),
        ]),
    *mutants_of(
        'towers/launch/agent.py', tests='tests/launch/test_agents.py', faults=[
            ('own is not None and own.card.identity >', 'False and own.card.identity >',
             'two agents stay in one place',
             'test_of_two_agents_in_one_place_the_later_one_stays'),
            ('meanwhile=self._show,', 'meanwhile=lambda: None,',
             'an agent is silent while its worker leaves',
             'test_a_card_changes_while_a_worker_leaves'),
        ]),
    *mutants_of(
        'towers/base/whole_file.py', tests='tests/launch/test_agents.py', faults=[
            ('os.link(temporary, path)', 'os.replace(temporary, path)',
             'the second writer of a round replaces the first',
             'test_of_several_writers_of_a_file_the_first_wins'),
        ]),
    *mutants_of(
        'towers/training/saving/lock.py', tests='tests/training/saving/test_lock.py', faults=[
            ('if time.monotonic() >= until:', 'if True:',
             'the chief of a new round does not wait for the one before',
             'test_who_may_wait_gets_it_once_the_other_has_ended'),
        ]),
    *mutants_of(
        'towers/launch/round.py', tests='tests/launch/test_elastic.py', faults=[
            ('lost = running  # All others', 'lost = []  # All others',
             'the worker that the others miss is not left out',
             'test_a_worker_that_the_others_miss_is_the_lost_one'),
        ]),
    *mutants_of(
        'towers/training/stepping/startup.py', tests='tests/training/stepping/test_startup.py',
        faults=[
            ('elif now - self._idle_since >= self._idle_limit:', 'elif False:',
             'a worker that hangs before all have met never ends',
             'test_a_start_that_does_nothing_for_long_ends_and_one_that_works_does_not[idle]'),
            ('if self._limit_seconds is not None and now', 'if False and now',
             'a start that hangs never ends',
             'test_a_start_with_a_limit_says_what_does_not_end_unless_the_limit_is_lifted[False]'),
        ]),
    *mutants_of(
        'towers/launch/children.py', tests='tests/launch/test_launch.py', faults=[
            ('if self._are_leaving:', 'if False:',
             'a signal to who is leaving already reaches it as the second',
             'test_a_signal_while_all_are_leaving_is_not_sent_again_and_nothing_starts_again'),
        ]),
    *mutants_of(
        'towers/training/stepping/steps.py', tests='tests/reduce/test_accumulate.py', faults=
        [('for _ in range(self._plan.num_micro_batches(self.step) - 1):',
          'for _ in range(self._plan.num_micro_batches(self.step)):',
          'a step takes one micro-batch too many',
          'test_micro_batches_and_towers_equal_one_big_batch[split-1-0-2]'),
         ('for _ in range(self._plan.num_micro_batches(self.step) - 1):',
          'for _ in range(self._plan.accumulate - 1):',
          'the last step of an epoch takes micro-batches of the next',
          'test_micro_batches_and_towers_equal_one_big_batch'),
         ('(self.step, self._plan.examples_before(self.step))):',
          '(self.step, self.step * self._plan.batch_size)):', 'a skipped step counts a full batch',
          'tests/training/stepping/test_steps.py::test_a_skipped_step_counts_the_examples_that_it_had'
         ),
         ('self._program.feed.start(self._session, step=self.step)\n    losses', 'losses',
          'a step that is tried again takes the next examples',
          'tests/update/test_guard.py::test_what_fails_only_once_is_done_when_it_is_tried_'
          'again'),
         ('scale.variable.load(value / 2, self._session)',
          'scale.variable.load(value, self._session)', 'the scale stays too large',
          'tests/tower/test_precision.py::test_an_overflow_in_one_tower_skips_the_step_once_'
          'in_all_and_halves_the_scale[0]'),
         ('wants = wants and not is_agreed', 'wants = wants',
          'what all have agreed on is asked for again',
          'tests/reduce/test_workers.py::test_all_workers_get_a_vote_after_the_next_step_and_once'),
         ('if self._validation.snapshot_op is not None:',
          'if self._validation.snapshot_op is None:', 'a validation tower measures an old snapshot',
          'tests/test_exactness.py::test_a_validation_tower_measures_what_the_switch_'
          'measures[2-split]'),]),
    *mutants_of(
        'towers/training/settings/intervals.py', tests='tests/training/settings/test_config.py',
        faults=[
            ("return max(1, round(count * (steps_per_epoch if unit == 'epochs' else 1)))",
             "return round(count * (steps_per_epoch if unit == 'epochs' else 1))",
             'a small part of an epoch is an interval of no steps',
             'test_intervals_are_steps_or_epochs'),
            ('round((_DEFAULT_EPOCHS if epochs is None else epochs) * steps_per_epoch)',
             'int((_DEFAULT_EPOCHS if epochs is None else epochs) * steps_per_epoch)',
             'parts of epochs are cut and not rounded', 'test_steps_come_from_epochs_unless_given'),
        ]),
    *mutants_of(
        'towers/training/settings/config.py', tests='tests/training/settings/test_config.py',
        faults=[
            ("return _PEAKS.get(self.optimizer, 0.05)", 'return 0.05',
             'adam starts with the rate of momentum',
             'test_the_rate_follows_the_optimizer_unless_given'),
        ]),
    *mutants_of(
        'towers/training/tools/serving.py', tests='tests/training/tools/test_serving.py', faults=[
            ('used = {name: tensor for name, tensor in inputs.items() if tensor.op in needed}',
             'used = dict(inputs)', 'labels are inputs of an exported model',
             'test_what_is_exported_computes_what_the_program_did[dict]'),
            ('position += 1', 'position += 0', 'all inputs of a tuple are its first part',
             'test_what_is_exported_computes_what_the_program_did[tuple]'),
        ]),
    *mutants_of(
        'towers/training/tools/export.py', tests='tests/training/tools/test_serving.py', faults=[
            ('clear_devices=True', 'clear_devices=False', 'an export has the devices of its model',
             'test_what_is_exported_computes_what_the_program_did[tuple]'),
        ]),
    *mutants_of(
        'towers/training/tools/fingerprint.py', tests='tests/training/tools/test_serving.py',
        faults=[
            ("parts['command'] = list(command)", "parts['command'] = []",
             'autotune remembers the settings of other flags of a script',
             'test_autotune_starts_over_where_a_model_of_ones_own_has_changed'),
            ("parts['workers'] = [cluster.num_workers, len(hosts)]",
             "parts['workers'] = [cluster.num_workers]",
             'autotune remembers the settings of workers on one machine for several',
             'tests/training/tools/test_autotune.py::test_the_fingerprint_depends_on_what_matters'),
        ]),
    *mutants_of(
        'towers/training/tools/autotune.py', tests='tests/training/tools/test_autotune.py', faults=[
            ('all_reduce_bytes > 1e6 * least:', 'all_reduce_bytes > 0 * least:',
             'sizes of fused gradients are tried that change nothing',
             'test_sizes_of_fused_gradients_are_tried_where_they_change_something'),
        ]),
    *mutants_of(
        'towers/training/tools/exchange.py', tests='tests/training/tools/test_exchange.py', faults=[
            ('if None not in rounds:', 'if rounds:',
             'the report of a trial is taken for what its worker has found',
             'test_a_trial_that_waits_for_one_that_has_failed_ends'),
            ('if len(set(rounds)) > 1:', 'if not rounds:',
             'a worker that was started again takes part in the middle',
             'test_who_is_lost_or_begins_anew_is_named'),
        ]),
    *mutants_of(
        'towers/training/tools/timed_trial.py', tests='tests/training/tools/test_exchange.py',
        faults=[
            ('key=lambda rank: (_is_consequence(errors[rank]), rank))', 'key=lambda rank: rank)',
             'of a failed trial its consequence in another worker is named',
             'test_the_cause_of_a_failed_trial_is_named'),
        ]),
    *mutants_of(
        'towers/session.py', tests='tests/test_program.py', faults=[
            ("_INPUT_OPS = (*GET_NEXTS, 'Unstage', 'Stage')",
             "_INPUT_OPS = ('IteratorGetNext', 'Unstage', 'Stage')",
             'without staging, training loses the batch that a fetch has looked at',
             'test_no_order_of_calls_blocks_or_changes_what_is_trained[input_mode-staging_depth1]'),
        ]),
    *mutants_of(
        'towers/training/tools/timed_trial.py', tests='tests/training/settings/test_functions.py',
        faults=[
            ('if is_given(settings[name])', 'if not settings[name]',
             'trials of a script are refused, because they name its model by a flag',
             'test_a_trial_runs_a_script_with_its_own_model_and_data'),
        ]),
]
