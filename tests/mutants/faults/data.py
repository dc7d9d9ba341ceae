"""What files, arrays and augmentation give."""

from tests.mutants.mutant import mutants_of

MUTANTS = [
    *mutants_of(
        'towers/data/composite.py', tests='tests/input/test_composite.py', faults=[
            ('parts = sorted(structure.items())', 'parts = list(structure.items())',
             'messages name another component than the one that is wrong',
             'tests/data/test_datasets.py::test_unknown_shapes_become_those_of_the_first_element'),
            ('indices = tf.concat([places[:, :1],', 'indices = tf.concat([places[:, 1:],',
             'values of a sparse batch stand in other examples',
             'test_towers_get_the_ragged_and_sparse_tensors_of_their_examples'),
            ('counts = tf.reduce_sum(of_rows, 1)', 'counts = tf.size(of_rows, out_type=tf.int64) '
             '+ 0 * counts', 'the padding of a ragged batch reaches the model',
             'test_towers_get_the_ragged_and_sparse_tensors_of_their_examples'),
            ('if not shape.is_fully_defined():', 'if shape.ndims is None:',
             'a sparse component of any size is batched',
             'test_records_may_be_sparse_or_ragged'),
        ]),
    *mutants_of(
        'towers/input/rows.py', tests='tests/input/test_composite.py', faults=[
            ('if not is_of_rows and not shape.is_fully_defined():', 'if False:',
             'a dense component beside a sparse one is padded unasked',
             'test_what_cannot_stand_beside_them_is_refused'),
        ]),
    *mutants_of(
        'towers/data/formats/tfrecord.py', tests='tests/test_faults.py', faults=[
            ('damage = Damage(int(record), int(offset), int(num_bytes), str(reason))',
             'damage = Damage(record, offset, num_bytes, reason)',
             'a kept index may hold texts for numbers',
             'test_hostile_small_files_are_read_or_refused_in_one_line'),
        ]),
    *mutants_of(
        'towers/data/digest.py', tests='tests/data/test_digest.py', faults=[
            ('os.path.basename(path)', 'path', 'copies of files in two folders differ',
             'test_copies_of_files_are_equal_and_other_files_are_not'),
            ('np.linspace(0, count - 1, _MOST_EXAMPLES)', 'np.linspace(0, count - 1, 1)',
             'data differ by their first example alone',
             'test_other_arrays_of_equal_size_have_another_digest'),
        ]),
    *mutants_of(
        'towers/data/arrays.py', tests='tests/data/test_arrays.py', faults=[
            ("with tf.device('/cpu:0'):", 'with tf.name_scope(None):',
             "whole arrays are sent to a tower's GPU",
             'test_gathering_stays_on_the_cpu_in_a_towers_device_scope'),
            ('starts[index]:starts[index + 1]', 'starts[index]:starts[index + 1] - 1',
             'a sentence lacks its last word',
             'test_rows_of_unequal_length_are_padded[rows0-int64-padded0]'),
            ('if column.num_examples != first.num_examples:',
             'if column.num_examples < first.num_examples:',
             'a longer array is taken for the same examples', 'test_what_cannot_be_fed_is_refused'),
            ("dtype=array.dtype.newbyteorder('='))", 'dtype=array.dtype)',
             'foreign byte order is fed as it is', 'test_any_layout_in_memory'),
            ('if _holds_strings(array):', "if array.dtype.kind in 'SU':",
             'strings that are Python objects are refused',
             'test_strings_are_what_they_were_to_the_byte'),
            ('value.encode() if isinstance(value, str) else bytes(value)',
             'value.encode() if isinstance(value, str) else value.strip(b"\\0")',
             'zero bytes at the ends of strings are lost',
             'test_strings_are_what_they_were_to_the_byte'),
            ("yield from _leaves(part, f\"{path}{'/' if path else ''}{key}\", name)",
             "yield from _leaves(part, f'{key}', name)",
             'a message names the last key of a nested dict alone',
             'test_what_cannot_be_fed_is_refused'),
        ]), *mutants_of(
            'towers/data/augment.py', tests='tests/data/test_augment.py', faults=[
                ('draws = draw(indices, epoch=epoch, seed=seed, count=NUM_DRAWS[kind])',
                 'draws = draw(indices, epoch=0 * epoch, seed=seed, count=NUM_DRAWS[kind])',
                 'cifar crops alike in every epoch',
                 'test_augmented_arrays_are_cropped_anew_in_every_epoch_by_each_examples_draws'),
                ('draws = draw(indices, epoch=epoch, seed=seed, count=NUM_DRAWS[kind])',
                 'draws = draw(indices, epoch=epoch, seed=0, count=NUM_DRAWS[kind])',
                 'the seed does not decide the crops',
                 'test_augmented_arrays_are_cropped_anew_in_every_epoch_by_each_examples_draws'),
                ('draws[:, :2] * (2 * _PADDING + 1)', 'draws[:, :2] * (2 * _PADDING)',
                 'the last shift is never drawn', 'test_shifted_and_mirrored_images_are_numpys'),
                ('tf.tile(width - 1 - columns, [tf.shape(draws)[0], 1])',
                 'tf.tile(width - columns, [tf.shape(draws)[0], 1])',
                 'mirrored images are off by one column',
                 'test_shifted_and_mirrored_images_are_numpys'),
                ('rows += tf.range(tf.shape(images)[0])[:, tf.newaxis] * padded_height',
                 'rows += tf.range(tf.shape(images)[0])[:, tf.newaxis] * padded_width',
                 'height and width are confused', 'test_shifted_and_mirrored_images_are_numpys'),
                ('tf.cast(room + 1, tf.float32)', 'tf.cast(room, tf.float32)',
                 'no window reaches the last row or column',
                 'test_the_largest_draws_reach_the_last_row_and_column_and_none_beyond'),
                ('sides = tf.stack([tf.sqrt(area / aspect), tf.sqrt(area * aspect)], 2)',
                 'sides = tf.stack([area / aspect, area * aspect], 2)',
                 'sides are areas, so that hardly any window fits',
                 'test_random_windows_lie_within_the_image_and_cover_what_they_should'),
                ('aspect = tf.exp((2 * aspect - 1) * math.log(_MAX_ASPECT))',
                 'aspect = tf.exp(aspect * math.log(_MAX_ASPECT))', 'windows are never upright',
                 'test_random_windows_lie_within_the_image_and_cover_what_they_should'),
                ('sides = tf.maximum(tf.maximum(sides, tf.minimum(shorter, image_size)), 1)',
                 'sides = tf.maximum(sides, 1)', 'an image of just the right size is cut',
                 'test_the_central_window'),
            ]),
    *mutants_of(
        'towers/data/components.py', tests='tests/data/test_datasets.py', faults=[
            ('lambda: tf.reduce_all(tf.equal(tf.gather(shape, known), sizes))',
             'lambda: tf.constant(True)',
             'an example of another shape is taken for one of the first shape',
             'test_unknown_shapes_become_those_of_the_first_element'),
        ]),
    *mutants_of(
        'towers/data/datasets.py', tests='tests/data/test_datasets.py', faults=[
            ('begin + num_rows <= count', 'begin <= count',
             'a data set of more elements than promised loses the rest silently',
             'test_a_data_set_of_another_size_than_promised_fails[2]'),
            ('for size in itertools.count(_CHUNK) if count % size)',
             'for size in itertools.count(_CHUNK))',
             'nobody reads the element after a last one that fills its chunk',
             'test_a_data_set_of_another_size_than_promised_fails[17]'),
            ('if not read.are_static:', 'if False:',
             'examples of unequal shapes are stacked before they can be padded',
             'test_examples_of_unequal_shapes_end_where_they_should_and_can_be_padded'),
            ('count = num_examples or _read_count(count_file, name) or _count(copy, count_file, '
             'name)', 'count = num_examples or _count(copy, count_file, name)',
             'a count that was kept is made again', 'test_a_count_is_told_and_kept'),
            ('last_op.graph is not tf.get_default_graph()', 'last_op.graph is None',
             'a data set of another graph is taken',
             'test_a_data_set_belongs_to_its_graph_and_a_function_to_any'),
        ]),
    *mutants_of(
        'towers/data/dataset_ops.py', tests='tests/data/test_datasets.py', faults=[
            ('_kind(op) in _BATCHES and _keeps_batches(dataset, op)', '_kind(op) in _BATCHES',
             'examples that are made of batches are refused',
             'test_what_looks_batched_and_is_not_is_taken'),
            ('[get_constant(seed) for seed in op.inputs[2:4]] == [0, 0]', 'True',
             'a fixed order of shuffling is refused',
             'test_what_looks_batched_and_is_not_is_taken'),
            ("if 'Shuffle' in op.type):", "if 'Batch' in op.type):",
             'each shard shuffles anew, so that examples are missed and repeated',
             'test_what_cannot_be_split_is_refused_with_the_fix'),
        ]),
    *mutants_of(
        'towers/data/records.py', tests='tests/data/test_records.py', faults=[
            ('return np.False_', 'return np.True_',
             'zeros are trained on in place of a record that cannot be parsed',
             'test_a_bad_record_is_named_or_left_out_alone[split-shape]'),
            ("matches = [path] if os.path.exists(path) else sorted(", "matches = [path] if "
             'os.path.exists(path) else list(', 'the order of the files is that of the disk',
             'test_files_are_found_by_pattern_list_or_name'),
            ('if len(set(map(os.path.realpath, found))) < len(found):', 'if not found:',
             'the records of a file that is named twice count twice',
             'test_what_cannot_be_read_is_refused_at_once'),
        ]),
    *mutants_of(
        'towers/data/formats/tfds_features.py', tests='tests/data/folders/test_tfds_folder.py',
        faults=[
            ("if feature.encoding == 'zlib':", 'if False:', 'compressed tensors are not expanded',
             'test_features_of_every_kind_come_as_nested_dicts'),
            ("_RAW = {'bool': 'uint8', 'uint32': 'int32', 'uint64': 'int64'}",
             "_RAW = {'bool': 'uint8', 'uint32': 'int32', 'uint64': 'int32'}",
             'unsigned tensors are cut into halves',
             'test_features_of_every_kind_come_as_nested_dicts'),
            ('feature.path: feature} if isinstance', "feature.path.split('/')[-1]: feature} if "
             'isinstance', 'nested features are looked for without their path',
             'test_features_of_every_kind_come_as_nested_dicts'),
        ]),
    *mutants_of(
        'towers/data/folders/tfds_folder.py', tests='tests/data/folders/test_tfds_folder.py',
        faults=[
            ('counts = {file: count for file, count in self.splits[split] if count}',
             'counts = {file: count for file, count in self.splits[split][:1]}',
             'only the first file of a split is read', 'test_labelled_images_are_read_as_they_are'),
            ('if feature.path in self.supervised]', 'if feature.path not in self.supervised]',
             'the image that is not for learning is learned from',
             'test_supervised_keys_choose_among_several_images'),
        ]),
    *mutants_of(
        'towers/data/draws.py', tests='tests/data/test_draws.py', faults=[
            ('* GOLDEN, tf.bitwise) + indices, tf.bitwise)',
             '* GOLDEN, tf.bitwise) + tf.range(tf.size(indices, out_type=tf.int64)), '
             'tf.bitwise)', 'draws belong to places in a batch, not to examples',
             'test_an_examples_draws_do_not_depend_on_its_batch'),
            ('positions = tf.range(1, count + 1, dtype=tf.int64)',
             'positions = tf.ones([count], tf.int64)', 'all draws of an example are the same',
             'test_draws_are_splitmix64'),
        ]),
    *mutants_of(
        'towers/base/splitmix.py', tests='tests/data/test_draws.py', faults=[
            ('return bitwise.bitwise_and(bitwise.right_shift(values, bits), 2 ** (64 - bits) - 1)',
             'return bitwise.right_shift(values, bits)', 'draws may be negative',
             'test_draws_are_splitmix64'),
        ]),
    *mutants_of(
        'towers/data/folders/cifar.py', tests='tests/data/folders/test_cifar.py', faults=[
            ('reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)',
             'reshape(-1, 3, 32, 32).transpose(0, 3, 2, 1)', 'height and width are swapped',
             'test_images_and_labels_come_out_as_they_went_in[False-cifar10]'),
            ('labels = records[:, layout.num_labels - 1].astype(np.int32)',
             'labels = records[:, 0].astype(np.int32)', 'CIFAR-100 is read with its coarse labels',
             'test_images_and_labels_come_out_as_they_went_in[False-cifar100]'),
            ('images, labels = np.delete(images, wrong, axis=0), np.delete(labels, wrong)',
             'images, labels = images, np.delete(labels, wrong)',
             'labels behind a damaged record belong to other images',
             'test_damage_is_named_or_left_out'),
            ('seed=seed), validation=splits[1],', 'seed=seed), validation=splits[0],',
             'validation measures on the training split',
             'test_images_and_labels_come_out_as_they_went_in[False-cifar10]'),
        ]), *mutants_of(
            'towers/data/bad_records.py', tests='tests/data/test_bad_records.py',
            faults=[('is_known = (path, offset) in self._places',
                     'is_known = path in {place for place, _ in self._places}',
                     'of the damaged records of a file only the first is told',
                     'test_skip_logs_each_place_once_and_counts_them_by_file'),
                    ('by_file[path] = by_file.get(path, 0) + 1', 'by_file[path] = 1',
                     'the summary counts files, not records',
                     'test_skip_logs_each_place_once_and_counts_them_by_file'),
                    ('self.failure = self.failure or message', 'self.failure = message',
                     'the message names the last damage',
                     'test_fail_names_the_place_and_the_setting_and_remembers_the_first'),]),
    *mutants_of(
        'towers/data/formats/tfrecord.py', tests='tests/data/formats/test_tfrecord.py', faults=[
            ('return self._paths[file], int(self._offsets[index]), index - first',
             'return self._paths[file], int(self._offsets[index]), index',
             "a record's number counts from the first file",
             'test_records_of_several_files_are_numbered_through'),
            ('files = [bisect.bisect_right(self._ends, index) for index in indices]',
             'files = [bisect.bisect_left(self._ends, index) for index in indices]',
             'the first record of a file is sought in the file before',
             'test_records_of_several_files_are_numbered_through'),
            ('if mask(checksum) != stated[position]:', 'if False:',
             'damaged payloads are trained on',
             'test_a_damaged_payload_loses_one_record_of_five[2]'),
            ("if (header['format'], header['size'], header['mtime_ns']) != expected:",
             "if header['format'] != _FORMAT:",
             'the index of a file that has changed is taken',
             'test_an_index_is_kept_and_made_anew_when_the_file_changed'),
            ('offset = first_offset + payload_bytes + wrong * (_HEADER_BYTES + _FOOTER_BYTES)',
             'offset = first_offset + payload_bytes + wrong * _HEADER_BYTES',
             'the place of a damaged length is wrong',
             'test_a_damaged_length_loses_the_rest_of_the_file_and_says_so'),
        ]), *mutants_of(
            'towers/data/formats/crc32c.py', tests='tests/data/formats/test_crc32c.py', faults=[
                ('return (((checksum >> 15) | (checksum << 17)) + _MASK_DELTA) & 0xFFFFFFFF',
                 'return (((checksum >> 17) | (checksum << 15)) + _MASK_DELTA) & 0xFFFFFFFF',
                 'checksums are turned the other way',
                 'test_the_masked_checksum_is_that_of_tensorflows_files'),
                ('return [google_crc32c.value(buffer) for buffer in buffers]',
                 'return [google_crc32c.value(buffers[0]) for _ in buffers]',
                 'every record has the checksum of the first',
                 'test_it_agrees_with_the_definition_for_every_length_alone_and_together'),
            ]), *mutants_of(
                'towers/data/formats/labelled_example.py',
                tests='tests/data/folders/test_tfrecord_folder.py', faults=[
                    ('return image, label - first_label', 'return image, label',
                     "ImageNet's labels are off by one",
                     'test_imagenets_layout_is_read_as_it_is[validation]'),
                    ('if not first_label <= label < first_label + num_classes:',
                     'if not first_label <= label <= first_label + num_classes:',
                     'a label one too large is taken',
                     'test_labels_lie_from_the_first_one_on_up_to_the_number_of_classes'),
                ]),
    *mutants_of(
        'towers/data/folders/image_folder.py', tests='tests/data/folders/test_image_folder.py',
        faults=[
            ('labels += [label] * len(found)', 'labels += [len(labels)] * len(found)',
             'images have no class', 'test_both_splits_are_found[val]'),
            ("validation=examples_of('validation', 'none'),",
             "validation=examples_of('validation', augment),", 'validation is augmented',
             'test_training_is_augmented_and_validation_never[cifar]'),
        ]), *mutants_of(
            'towers/data/encoded_images.py', tests='tests/data/test_encoded_images.py', faults=[
                ('draws = draw(indices, epoch=epoch, seed=self.seed, count=num_draws)',
                 'draws = draw(indices, epoch=0 * epoch, seed=self.seed, count=num_draws)',
                 'encoded images are cropped alike in every epoch',
                 'test_augmentation_is_the_same_in_every_mode_on_any_towers_and_after_a_'
                 'resume[imagenet]'),
                ('image = tf.cast(image + 0.5, tf.uint8)', 'image = tf.cast(image, tf.uint8)',
                 'pixels are cut and not rounded', 'test_pixels_are_rounded'),
                ('tf.concat([window[2:], [-1]], 0)', 'tf.concat([window[1::-1], [-1]], 0)',
                 'a PNG is cropped to another window', 'test_pngs_lose_nothing_and_mix_with_jpegs'),
                ('labels[row], is_read[row] = label, True',
                 'labels[0], is_read[row] = label, True', 'labels of a chunk are lost',
                 'test_records_keep_their_order_and_their_labels[fail]'),
            ]), *mutants_of(
                'towers/data/synthetic.py', tests='tests/data/test_synthetic.py', faults=[
                    ('validation = _images_and_labels(patterns, num_validation, '
                     'np.random.RandomState([seed, 2]))',
                     'validation = _images_and_labels(patterns, num_validation, '
                     'np.random.RandomState([seed, 1]))', 'validation measures on what was trained',
                     'test_splits_differ_and_do_not_depend_on_each_others_length'),
                ]),
]
