"""The glue of repositories with models of text, and the tiny sizes of each.

A function imports the repository, and returns the model function.
"""

import functools
import json
import logging
import tempfile
import types

import numpy as np

import towers
from tests.gallery.field.repositories import load, write
from tests.gallery.programs import cross_entropy
from towers.tensorflow_v1 import tf

WORDS, LENGTH, CLASSES = 11, 6, 3
GPT_2 = dict(n_vocab=WORDS, n_ctx=LENGTH, n_embd=8, n_head=2, n_layer=2)
FINETUNE = dict(
    n_vocab=WORDS - 1, n_special=1, n_ctx=LENGTH, n_embd=8, n_head=2, n_layer=2, afn='gelu',
    clf_token=WORDS - 1, embd_pdrop=0.1, attn_pdrop=0.1, resid_pdrop=0.1, clf_pdrop=0.1)
BERT = dict(vocab_size=WORDS, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=16, max_position_embeddings=LENGTH)
TRANSFORMER_XL = dict(
    n_token=WORDS, n_layer=2, d_model=8, d_embed=8, n_head=2, d_head=4, d_inner=16, dropout=0.1,
    dropatt=0.2, untie_r=True, mem_len=0, cutoffs=[], use_tpu=False)
XLNET_CONFIG = dict(n_layer=2, d_model=8, n_head=2, d_head=4, d_inner=16, ff_activation='gelu',
                    untie_r=True, n_token=WORDS)
XLNET = dict(
    use_tpu=False, use_bfloat16=False, dropout=0.1, dropatt=0.1, init='normal', init_range=0.1,
    init_std=0.1, clamp_len=-1, summary_type='last', use_summ_proj=True, cls_scope=None,
    task_name='task')
TRANSLATOR = dict(vocab_size=WORDS, d_model=8, d_ff=16, num_blocks=1, num_heads=2, maxlen1=LENGTH,
                  maxlen2=LENGTH, dropout_rate=0.3)
VOCABULARY = ['<pad>', '<unk>', '<s>', '</s>'] + [f'w{number}' for number in range(WORDS - 4)]
CHAR_RNN = dict(model='lstm', num_layers=2, rnn_size=8, seq_length=LENGTH - 1, vocab_size=WORDS,
                output_keep_prob=0.8, input_keep_prob=0.8, grad_clip=5.)
ELECTRA = dict(
    vocab_size=WORDS, max_seq_length=LENGTH, mask_prob=0.4, embedding_size=8,
    generator_hidden_size=0.5, model_hparam_overrides=dict(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16))
TAGGER = dict(
    use_chars=True, use_crf=True, embeddings=None, nwords=WORDS, dim_word=6, nchars=WORDS,
    dim_char=4, hidden_size_char=3, hidden_size_lstm=5, ntags=CLASSES, lr_method='adam', clip=1.,
    vocab_tags={})
NMT = dict(encoder_type='bi', num_layers=2, attention='scaled_luong',
           attention_architecture='standard')
SUMMARIES = dict(
    lr=0.15, adagrad_init_acc=0.1, rand_unif_init_mag=0.1, trunc_norm_init_std=0.1,
    max_grad_norm=2., hidden_dim=6, emb_dim=5, max_dec_steps=4, coverage=True, cov_loss_wt=1.,
    pointer_gen=True)
READER = dict(char_limit=4, hidden=5, char_dim=3, char_hidden=4, use_cudnn=False, keep_prob=0.7,
              ptr_keep_prob=0.7, grad_clip=5.)
READER_TABLES = [np.float32(np.random.RandomState(1).randn(WORDS, size)) for size in (6, 3)]
QANET = dict(char_limit=5, hidden=8, char_dim=3, num_heads=2, ans_limit=4, l2_norm=None, decay=0.99)
TENSOR2TENSOR = dict(hidden_size=8, filter_size=16, num_heads=2)
BILM = dict(
    bidirectional=True, dropout=0.1, unroll_steps=4, n_tokens_vocab=20, n_negative_samples_batch=8,
    all_clip_norm_val=10., char_cnn=dict(
        activation='relu', embedding=dict(dim=3), filters=[[1, 4], [2, 5]], n_highway=2,
        max_characters_per_token=6, n_characters=261),
    lstm=dict(cell_clip=3, dim=8, n_layers=2, proj_clip=3, projection_dim=4,
              use_skip_connections=True))
NEMATUS = dict(
    factors=1, rnn_use_dropout=True, rnn_dropout_source=0.1, rnn_dropout_target=0.1,
    rnn_dropout_embedding=0.2, rnn_dropout_hidden=0.2, rnn_layer_normalization=True,
    layer_normalization_type='layernorm', tie_encoder_decoder_embeddings=False,
    tie_decoder_embeddings=True, label_smoothing=0.1, source_vocab_sizes=[WORDS],
    dim_per_factor=[6], target_vocab_size=WORDS, target_embedding_size=6, embedding_size=6,
    state_size=5, translation_maxlen=10, theano_compat=False, rnn_enc_depth=1,
    rnn_enc_transition_depth=1, rnn_dec_depth=2, rnn_dec_base_transition_depth=2,
    rnn_dec_high_transition_depth=1, rnn_dec_deep_context=False, rnn_lexical_model=True,
    output_hidden_activation='tanh', softmax_mixture_size=1, sampling_temperature=1.,
    translation_strategy='beam_search')
PTB = dict(num_steps=8, hidden_size=6, vocab_size=16, num_layers=1, keep_prob=0.8)


def gpt_2():
  net = load('gpt-2/src', 'model')
  hparams = net.default_hparams().override_from_dict(GPT_2)

  def model(batch, is_training):
    logits = net.model(hparams, batch[0][:, :-1])['logits']
    return tf.reduce_mean(cross_entropy(batch[0][:, 1:], logits), 1)
  return model


def finetune():
  net = load('finetune-transformer-lm', 'train')
  vars(net).update(FINETUNE)

  def model(batch, is_training):
    _, losses, language = net.model(*batch, train=is_training)
    return losses + 0.5 * tf.reduce_mean(tf.reshape(language, [-1, 2]), 1)
  return model


def bert():
  net, modeling = load('bert', 'run_classifier', 'modeling')
  config = modeling.BertConfig(**BERT)

  def model(batch, is_training):
    words, labels = batch
    _, losses, logits, _ = net.create_model(
        config, is_training, words, tf.ones_like(words), None, labels, CLASSES, False)
    return losses, {'accuracy': tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels)}
  return model


def bert_optimizer():
  return load('bert', 'optimization').AdamWeightDecayOptimizer(
      0.01, weight_decay_rate=0.01, exclude_from_weight_decay=['LayerNorm', 'layer_norm', 'bias'])


def transformer_xl():
  net = load('transformer-xl/tf', 'model')

  def model(batch, is_training):
    tokens = tf.transpose(batch[0])
    loss, _ = net.transformer(
        dec_inp=tokens[:-1], target=tokens[1:], mems=None, is_training=is_training,
        initializer=tf.random_normal_initializer(0., 0.1), **TRANSFORMER_XL)
    return loss
  return model


def xlnet():
  net = load('xlnet', 'function_builder')
  flags = types.SimpleNamespace(**XLNET, model_config_path=write(json.dumps(XLNET_CONFIG)))

  def model(batch, is_training):
    _, losses, _ = net.get_classification_loss(flags, batch, CLASSES, is_training)
    return losses
  return model


def translator():
  net = load('transformer', 'model')
  hparams = types.SimpleNamespace(**TRANSLATOR, vocab=write('\n'.join(VOCABULARY)))

  def model(batch, is_training):
    source, target, names = batch
    transformer = net.Transformer(hparams)
    memory, _, masks = transformer.encode((source, None, names), is_training)
    logits, _, target, _ = transformer.decode(
        (target[:, :-1], target[:, 1:], None, names), memory, masks, is_training)
    smooth = net.label_smoothing(tf.one_hot(target, WORDS))
    losses = tf.nn.softmax_cross_entropy_with_logits_v2(logits=logits, labels=smooth)
    return towers.Weighted(losses, tf.cast(tf.not_equal(target, 0), tf.float32))
  return model


def text_cnn():
  net = load('cnn-text-classification-tf', 'text_cnn')

  def model(batch, is_training):
    words, labels = batch
    cnn = net.TextCNN(LENGTH, CLASSES, WORDS, 8, [2, 3], 4, l2_reg_lambda=0.01)
    keep = 0.5 if is_training else 1.0
    return towers.fed({cnn.input_x: words, cnn.input_y: tf.one_hot(labels, CLASSES),
                       cnn.dropout_keep_prob: keep}, cnn.loss)
  return model


def char_rnn():
  net = load('char-rnn-tensorflow', 'model')

  def model(batch, is_training):
    rnn = net.Model(types.SimpleNamespace(batch_size=batch[0].shape[0].value, **CHAR_RNN))
    return towers.fed({rnn.input_data: batch[0][:, :-1], rnn.targets: batch[0][:, 1:]}, rnn.cost)
  return model


def ptb():
  net = load('models/tutorials/rnn/ptb', 'ptb_word_lm')

  def model(batch, is_training):
    ids, = batch
    sizes = dict(PTB, batch_size=ids.shape[0], rnn_mode=net.BASIC)
    data = types.SimpleNamespace(epoch_size=1, input_data=ids[:, :-1], targets=ids[:, 1:], **sizes)
    config = types.SimpleNamespace(**{**vars(net.SmallConfig), **sizes})
    return net.PTBModel(bool(is_training), config, data).cost / PTB['num_steps']
  return model


def electra():
  net, settings = load('electra', 'run_pretraining', 'configure_pretraining')
  vocabulary = ['[PAD]', '[CLS]', '[SEP]', '[MASK]', '[UNK]', *VOCABULARY[4:]]
  config = settings.PretrainingConfig('', '', vocab_file=write('\n'.join(vocabulary)), **ELECTRA)

  def model(batch, is_training):
    made = net.PretrainingModel(config, batch, bool(is_training))
    _, _, words, _, weights, mask, fakes = made.eval_metrics[1][:7]
    return {'words': towers.Weighted(words, weights),
            'fakes': towers.Weighted(config.disc_weight * fakes, tf.reduce_sum(mask, 1))}
  return model


def electra_optimizer():
  return load('electra', 'model.optimization').AdamWeightDecayOptimizer(
      0.01, weight_decay_rate=0.01, exclude_from_weight_decay=['LayerNorm', 'layer_norm', 'bias'])


def tagger():
  net = load('sequence_tagging', 'model.ner_model')
  config = types.SimpleNamespace(logger=logging.getLogger('tagger'), **TAGGER)

  def model(batch, is_training):
    words, lengths, letters, word_lengths, tags = batch
    ner = net.NERModel(config)
    ner.build()
    return towers.fed({ner.word_ids: words, ner.sequence_lengths: lengths, ner.char_ids: letters,
                       ner.word_lengths: word_lengths, ner.labels: tags,
                       ner.dropout: 0.5 if is_training else 1.}, ner.loss)
  return model


def nmt():
  net, settings, data, vocabularies = load('nmt', 'nmt.attention_model', *(
      f'nmt.utils.{name}_utils' for name in ('common_test', 'iterator', 'vocab')))
  hparams, vocabulary = settings.create_test_hparams(**NMT), write('<s>\n</s>\na\nb\nc')

  def model(batch, is_training):
    words, begun, ended, lengths, sizes = batch
    longest = tf.reduce_max(sizes)
    inputs = data.BatchedInput(None, words, begun[:, :longest], ended[:, :longest], lengths, sizes)
    tables = vocabularies.create_vocab_tables(vocabulary, vocabulary, True)
    made = net.AttentionModel(hparams, 'train' if is_training else 'eval', inputs, *tables)
    return made.train_loss if is_training else made.eval_loss
  return model


def summaries():
  net = load('pointer-generator', 'model')
  net.FLAGS = types.SimpleNamespace(pointer_gen=True, log_root=tempfile.mkdtemp())
  vocabulary = types.SimpleNamespace(size=lambda: WORDS, write_metadata=lambda path: None)

  def model(batch, is_training):
    hps = types.SimpleNamespace(batch_size=batch['enc_lens'].shape[0].value,
                                mode='train' if is_training else 'eval', **SUMMARIES)
    made = net.SummarizationModel(hps, vocabulary)
    made.build_graph()
    fed = made._make_feed_dict(types.SimpleNamespace(max_art_oovs=2, **batch))
    return towers.fed(fed, made._total_loss)
  return model


def reader():
  net = load('R-Net', 'model')

  def model(batch, is_training):
    def getter(get, name, *args, **named):
      return tf.convert_to_tensor(is_training) if name == 'is_train' else get(name, *args, **named)
    c, q = [tf.reduce_max(towers.all_rows(tf.math.count_nonzero(part, 1))) for part in batch[:2]]
    rows = [part[:, :size] for part, size in zip(batch, (c, q, c, q, c, c))] + [None]
    config = types.SimpleNamespace(batch_size=batch[0].shape[0].value, para_limit=c, ques_limit=q,
                                   **READER)
    with tf.variable_scope(tf.get_variable_scope(), custom_getter=getter):
      iterator = types.SimpleNamespace(get_next=lambda: rows)
      return net.Model(config, iterator, *READER_TABLES, opt=False).loss
  return model


@functools.lru_cache(maxsize=None)
def load_qanet():
  net = load('QANet', 'model')
  block = net.residual_block
  net.residual_block = lambda *args, **named: block(*args, **dict(named, num_blocks=1))
  return net


def qanet():
  net = load_qanet()

  def model(batch, is_training):
    c, q = [tf.reduce_max(towers.all_rows(tf.math.count_nonzero(part, 1, dtype=tf.int32)))
            for part in batch[:2]]
    rows = [part[:, :size] for part, size in zip(batch, (c, q, c, q, c, c))] + [None]
    config = types.SimpleNamespace(batch_size=batch[0].shape[0].value, para_limit=c, ques_limit=q,
                                   **QANET)
    iterator = types.SimpleNamespace(get_next=lambda: rows)
    made = net.Model(config, iterator, *READER_TABLES, opt=False, trainable=False,
                     graph=tf.get_default_graph())
    return towers.fed({made.dropout: 0.1 if is_training else 0.}, made.loss)
  return model


def memory():
  net = load('memn2n', 'memn2n.memn2n')

  def model(batch, is_training):
    stories, queries, answers = batch
    made = net.MemN2N(None, WORDS, LENGTH, 5, 4, session=tf.Session())
    fed = {made._stories: stories, made._queries: queries,
           made._answers: tf.one_hot(answers, WORDS, dtype=tf.int32)}
    size = tf.cast(tf.shape(stories)[0], tf.float32)
    return towers.fed(fed, made.loss_op / size)
  return model


def memory_optimizer():
  net = load('memn2n', 'memn2n.memn2n')

  def update(grads_and_vars, global_step):
    made = [(net.add_gradient_noise(tf.clip_by_norm(grad, 40.)), weight)
            for grad, weight in grads_and_vars]
    made = [(net.zero_nil_slot(grad), weight) for grad, weight in made]
    return tf.train.GradientDescentOptimizer(0.1).apply_gradients(made)
  return update


def tensor2tensor():
  net, problems = load('tensor2tensor', 'tensor2tensor.models.transformer',
                       'tensor2tensor.data_generators.problem_hparams',
                       without=('tensor2tensor.envs', 'tensor2tensor.models.research.rl'))
  hparams = net.transformer_tiny().override_from_dict(TENSOR2TENSOR)
  problem = problems.test_problem_hparams(WORDS, WORDS, hparams)
  layers = net.common_layers
  layers.padded_cross_entropy = functools.partial(layers.padded_cross_entropy, reduce_sum=False)

  def model(batch, is_training):
    mode = tf.estimator.ModeKeys.TRAIN if is_training else tf.estimator.ModeKeys.EVAL
    source, target = (words[:, :, None, None] for words in batch)
    _, losses = net.Transformer(hparams, mode, problem)(
        dict(inputs=source, targets=target, target_space_id=tf.constant(1)))
    return towers.Weighted(losses['training'], tf.not_equal(target, 0))
  return model


def bilm():
  net = load('bilm-tf', 'bilm.training')

  def model(batch, is_training):
    options = dict(BILM, batch_size=batch['next_token_id'].shape[0].value)
    made = net.LanguageModel(options, bool(is_training))
    return towers.fed(net._get_feed_dict_from_X(batch, 0, None, made, True, True), made.total_loss)
  return model


def bilm_optimizer():
  net = load('bilm-tf', 'bilm.training')

  def update(grads_and_vars, global_step):
    clipped, _ = net.clip_grads(grads_and_vars, BILM, True, global_step)
    return tf.train.AdagradOptimizer(0.2, initial_accumulator_value=1.).apply_gradients(clipped)
  return update


def nematus():
  net = load('nematus/nematus', 'rnn_model')

  def model(batch, is_training):
    source, source_mask, target, target_mask = map(tf.transpose, batch)
    made = net.RNNModel(types.SimpleNamespace(**NEMATUS))
    fed = made.inputs
    return towers.fed({fed.x: source[None], fed.x_mask: source_mask, fed.y: target,
                       fed.y_mask: target_mask, fed.training: is_training}, made.loss)
  return model
