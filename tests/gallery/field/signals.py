"""The glue of repositories with models of images, games and sound."""

import functools
import os
import tempfile
import types
from unittest import mock

import numpy as np

import towers
from tests.gallery.field.repositories import load, within, write
from tests.gallery.programs import cross_entropy
from towers.tensorflow_v1 import tf

VOICES = ('--N=6', '--M=3', '--hidden=6', '--proj=4', '--num_layer=2')
# It asks for a version of a package, and ends the process without it.
WITHOUT = tuple('deepspeech_training.' + name for name in (
    'evaluate', 'util.helpers', 'util.config', 'util.feeding', 'util.evaluate_tools',
    'util.checkpoints'))
SPEECH_FLAGS = dict(relu_clip=20., layer_norm=False)
SPEECH = dict(cpu_device='/cpu:0', n_context=2, n_input=5, n_hidden_1=8, n_hidden_2=8,
              n_hidden_3=8, n_cell_dim=6, n_hidden_5=8, n_hidden_6=7)
WAVENET = dict(
    dilations=[1, 2, 4], filter_width=2, residual_channels=4, dilation_channels=4, skip_channels=4,
    quantization_channels=8, use_biases=True, global_condition_channels=3,
    global_condition_cardinality=4)
WAVEGLOW = dict(num_mels=4, lc_conv1d_filter_num=4, n_layers=2, residual_channels=6,
                skip_channels=5, upsampling_rate=8)
GLOW = dict(
    image_size=8, n_levels=2, depth=1, width=4, n_bits_x=8, n_y=3, ycond=True, learntop=True,
    weight_y=0.1, flow_permutation=2, flow_coupling=1, direct_iterator=True, inference=False)
MINIGO = dict(conv_width=4, fc_width=4, trunk_layers=1, work_dir=tempfile.gettempdir())
DCGAN = dict(input_height=16, input_width=16, output_height=16, output_width=16, z_dim=4, gf_dim=2,
             df_dim=2)
PIX2PIX = ('--mode=train', '--output_dir', tempfile.gettempdir(), '--ngf=1', '--ndf=1')

PIXEL_CNN = dict(nr_resnet=1, nr_filters=2, nr_logistic_mix=2)
TACOTRON = dict(
    num_mels=4, num_freq=6, outputs_per_step=1, predict_linear=True, embedding_dim=4,
    enc_conv_num_layers=1, enc_conv_kernel_size=(3,), enc_conv_channels=4, encoder_lstm_units=3,
    attention_dim=4, attention_filters=2, attention_kernel=(3,), prenet_layers=[4, 4],
    decoder_layers=1, decoder_lstm_units=4, postnet_num_layers=2, postnet_kernel_size=(3,),
    postnet_channels=4, cbhg_kernels=2, cbhg_conv_channels=4, cbhg_projection=4,
    cbhg_highwaynet_layers=1, cbhg_highway_units=4, cbhg_rnn_units=3,
    tacotron_teacher_forcing_ratio=0.5)
POLICY = dict(value_network='copy', num_hidden=8)
PPO = dict(ob_space=None, ac_space=None, nbatch_act=1, nbatch_train=None, nsteps=1, ent_coef=0.01,
           vf_coef=0.5, max_grad_norm=0.5)

MONODEPTH = dict(
    encoder='vgg', height=128, width=128, batch_size=None, num_threads=1, num_epochs=1,
    do_stereo=False, wrap_mode='border', use_deconv=False, alpha_image_loss=0.85,
    disp_gradient_loss_weight=0.1, lr_loss_weight=1., full_summary=False)
SRGAN = dict(
    batch_size=None, num_resblock=1, crop_size=4, perceptual_mode='MSE', EPS=1e-12, ratio=0.001,
    learning_rate=1e-4, decay_step=500000, decay_rate=0.1, stair=False, beta=0.9)
STARGAN = dict.fromkeys((
    'checkpoint_dir', 'sample_dir', 'result_dir', 'log_dir', 'augment_flag', 'epoch', 'iteration',
    'decay_flag', 'decay_epoch', 'print_freq', 'save_freq', 'lr'), '')
STARGAN.update(
    dataset='celebA', gan_type='wgan-gp', ch=2, selected_attrs=['Black_Hair', 'Blond_Hair', 'Male'],
    custom_label=[1., 0., 1.], adv_weight=1., rec_weight=10., cls_weight=10., ld=10., n_res=1,
    n_dis=3, n_critic=5, img_size=16, img_ch=3)
SPELLER = types.SimpleNamespace(
    num_units=4, num_layers=2, dropout=0.2, use_pyramidal=True, sampling_probability=0.3,
    target_vocab_size=7, embedding_size=3, sos_id=1, eos_id=2, bottom_only=True,
    pass_hidden_state=False, decoding_length_factor=1., attention_type='luong',
    attention_layer_size=None, beam_width=0)
LISTENER = types.SimpleNamespace(encoder=SPELLER, decoder=SPELLER, mapping=None, learning_rate=0.01)
ACTOR = dict(hidden_sizes=(8, 8), action_space=types.SimpleNamespace(high=[2.]))
SEPARATION = dict(input_size=5, output_size=5, model_type='blstm', rnn_size=6, rnn_num_layers=2,
                  max_grad_norm=5.)
CAPSULES = dict(dataset='', num_threads=1, m_plus=0.9, m_minus=0.1, lambda_val=0.5, iter_routing=3,
                mask_with_y=True, stddev=0.01, regularization_scale=0.392)


def learning(part):
  """A scope in which only the variables with `part` in their names learn."""
  def getter(get, name, *args, **kwargs):
    learns = part in name or kwargs.get('trainable') is False
    return get(name, *args, **kwargs) if learns else tf.stop_gradient(get(name, *args, **kwargs))
  return tf.variable_scope(tf.get_variable_scope(), custom_getter=getter, reuse=tf.AUTO_REUSE)


def by_all(layer, x, **named):
  """Returns what a layer makes of the rows of all towers, for those of this one."""
  rows, places = towers.all_rows(x, with_places=True)
  return tf.gather(layer(rows, **named), places)


def deepspeech():
  net = load('DeepSpeech/training', 'deepspeech_training.train', without=WITHOUT)
  net.FLAGS, net.Config = types.SimpleNamespace(**SPEECH_FLAGS), types.SimpleNamespace(**SPEECH)

  def model(batch, is_training):
    sounds, lengths, words = batch
    logits, _ = net.create_model(sounds, lengths, [0.1] * 6)
    sparse = tf.SparseTensor(tf.where(words >= 0), tf.reshape(words, [-1]),
                             tf.shape(words, out_type=tf.int64))
    return tf.nn.ctc_loss(labels=sparse, inputs=logits, sequence_length=lengths)
  return model


def wavenet():
  net = load('tensorflow-wavenet', 'wavenet')

  def model(batch, is_training):
    sounds, speakers = batch
    return net.WaveNetModel(tf.shape(sounds)[0], **WAVENET).loss(sounds, speakers)
  return model


def waveglow():
  net = load('WaveGlow', 'glow')
  net.hparams.override_from_dict(WAVEGLOW)

  def model(batch, is_training):
    made = net.WaveGlow(net.hparams.num_mels, n_flows=4, n_early_every=2)
    return net.compute_waveglow_loss(*made.create_forward_network(*batch), sigma=0.707)
  return model


def glow():
  net, ops = load('glow', 'model', 'tfops')
  ops.hvd = types.SimpleNamespace(rank=lambda: 0, size=lambda: 1)
  ops.do_print_act_stats = False
  net.abstract_model_xy = lambda sess, hps, feeds, batches, test, init, lr, f_loss: (
      types.SimpleNamespace(sess=sess, loss=f_loss(batches, True)[0]))

  def model(batch, is_training):
    batches = types.SimpleNamespace(get_next=lambda: batch)
    return net.model(None, types.SimpleNamespace(**GLOW), batches, None, None).loss

  def first(batch):
    with ops.arg_scope([ops.get_variable_ddi, ops.actnorm], init=True):
      return model(batch, True)
  model.init_from = first
  return model


def cifar10():
  net = load('models/tutorials/image/cifar10', 'cifar10')

  def model(batch, is_training):
    images, labels = batch
    net.FLAGS.batch_size = images.shape[0]
    net.loss(net.inference(images), labels)
    return tf.add_n(tf.get_collection('losses'))
  return model


def minigo():
  net = load('minigo', 'dual_net')
  flags = dict(vars(net.FLAGS), **MINIGO)

  def model(batch, is_training):
    return net.model_fn(*batch, tf.estimator.ModeKeys.TRAIN, flags).loss
  return model


def facenet():
  net = load('facenet/src/models', 'squeezenet')

  def model(batch, is_training):
    images, labels = batch
    embedding, _ = net.inference(images, 0.8, phase_train=is_training, bottleneck_layer_size=8,
                                 weight_decay=1e-4)
    logits = tf.layers.dense(embedding, 3, name='Logits')
    return cross_entropy(labels, logits)
  return model


def dcgan():
  net = load('DCGAN-tensorflow', 'model')
  net.glob, net.imread = lambda _: [''] * 64, lambda _: types.SimpleNamespace(shape=(16, 16, 3))

  def model(batch, is_training):
    images, noise = batch
    losses = []
    for part in ('d_', 'g_'):
      with learning(part):
        gan = net.DCGAN(None, batch_size=images.shape[0].value, **DCGAN)
      losses.append(towers.fed({gan.inputs: images, gan.z: noise}, getattr(gan, part + 'loss')))
    return tf.add_n(losses)
  return model


def pix2pix():
  net = load('pix2pix-tensorflow', 'pix2pix', arguments=PIX2PIX, runs=True)

  def model(batch, is_training):
    with learning('discriminator'):
      made = net.create_model(*batch)
    losses = -tf.log(made.predict_real + net.EPS) - tf.log(1 - made.predict_fake + net.EPS)
    with learning('generator'):
      made = net.create_model(*batch)
    losses -= tf.log(made.predict_fake + net.EPS)
    pixels = tf.reduce_mean(tf.abs(batch[1] - made.outputs), [1, 2, 3])
    return tf.reduce_mean(losses, [1, 2, 3]) + 100 * pixels
  return model


def pixel_cnn():
  net, nn = load('pixel-cnn', 'pixel_cnn_pp.model', 'pixel_cnn_pp.nn')

  def model(batch, is_training):
    spec = tf.make_template('model', net.model_spec)
    made = spec(batch[0], dropout_p=0.5 if is_training else 0., **PIXEL_CNN)
    losses = nn.discretized_mix_logistic_loss(batch[0], made, sum_all=False)
    return losses / (np.log(2) * 8 * 8 * 3)

  model.init_from = lambda batch: tf.make_template('model', net.model_spec)(
      batch[0], init=True, **PIXEL_CNN)
  return model


def tacotron():
  net, hparams = load('tacotron2', 'tacotron.models', 'hparams')
  for name, value in TACOTRON.items():
    setattr(hparams.hparams, name, value)

  def model(batch, is_training):
    made = net.create_model('Tacotron', hparams.hparams)
    sizes = tf.constant([[5, 6, 6, 6]])
    made.initialize(*batch, is_training=bool(is_training), is_evaluating=not is_training,
                    split_infos=sizes, global_step=tf.train.get_or_create_global_step())
    made.add_loss()
    return made.loss
  return model


def narrow(layer):
  """A convolution with a 32nd of its channels, whose numbers stand in the code that calls it."""
  layer = getattr(layer, '__wrapped__', layer)

  @functools.wraps(layer)
  def narrowed(input_data, filters_shape, *args, **named):
    sizes = [size if size in (1, 3, 21) else size // 32 for size in filters_shape]
    return layer(input_data, sizes, *args, **named)
  return narrowed


def yolo():
  net, common, config = load('yolov3', 'train', 'core.common', 'core.config')
  net.Dataset, common.convolutional = lambda kind: [0], narrow(common.convolutional)
  vars(config.cfg.YOLO).update(CLASSES=write('cat\ndog'), ANCHORS=write(','.join(18 * '2')))
  folder = tempfile.mkdtemp()
  os.mkdir(os.path.join(folder, 'data'))

  def model(batch, is_training):
    with within(folder):
      made = net.YoloTrain()
    inputs = (made.input_data, made.label_sbbox, made.label_mbbox, made.label_lbbox,
              made.true_sbboxes, made.true_mbboxes, made.true_lbboxes)
    return towers.fed({**dict(zip(inputs, batch)), made.trainable: is_training}, made.loss)
  return model


def thin(layer, by=64):
  """A convolution with a part of its channels, whose numbers stand in the code that calls it."""
  @functools.wraps(layer)
  def thinned(inputs, *args, **named):
    args = [size // by if isinstance(size, int) and size % by == 0 else size for size in args]
    return layer(inputs, *args, **named)
  return thinned


def ssd():
  net = load('SSD-Tensorflow', 'nets.ssd_vgg_300')
  net.slim = types.SimpleNamespace(**dict(vars(net.slim), conv2d=thin(net.tf.contrib.slim.conv2d)))
  made = net.SSDNet(net.SSDNet.default_params._replace(num_classes=3))

  def model(batch, is_training):
    with net.slim.arg_scope(made.arg_scope()):
      _, places, logits, _ = made.net(batch[0], is_training=is_training)
    rows = [tuple(map(towers.all_rows, part)) for part in (logits, places, *batch[1:])]
    made.losses(*rows)  # Which mines the hardest of all negatives.
    return tf.add_n(tf.losses.get_losses(tf.get_default_graph().get_name_scope()))
  return model


def ppo():
  net, policies, kinds, spaces = load('baselines', 'baselines.ppo2.model', *(
      'baselines.common.' + name for name in ('policies', 'distributions', 'input')))
  net.MPI, policies.make_pdtype = None, lambda space: kinds.CategoricalPdType(3)
  env = types.SimpleNamespace(observation_space=spaces.Box(shape=(5,), dtype=np.float32),
                              action_space=None)

  def model(batch, is_training):
    made = net.Model(policy=policies.build_policy(env, 'mlp', **POLICY), **PPO)
    names = (made.train_model.X, made.A, made.ADV, made.R, made.OLDNEGLOGPAC, made.OLDVPRED)
    gain, value, entropy, *_ = made.stats_list
    return towers.fed({**dict(zip(names, batch)), made.CLIPRANGE: 0.2},
                      gain - 0.01 * entropy + 0.5 * value)
  return model


def pointnet():
  net = load('pointnet/models', 'pointnet_cls')

  def model(batch, is_training):
    clouds, labels = batch
    scores, ends = net.get_model(clouds, tf.convert_to_tensor(is_training))
    rows = {'transform': towers.all_rows(ends['transform'])}
    return net.get_loss(towers.all_rows(scores), towers.all_rows(labels), rows)
  return model


def capsules():
  net, layers = load('CapsNet-Tensorflow', 'capsNet', 'capsLayer')

  def model(batch, is_training):
    size = batch[0].shape[0].value
    net.cfg = layers.cfg = types.SimpleNamespace(batch_size=size, **CAPSULES)
    net.get_batch_data = lambda *_: batch
    with mock.patch('tensorflow.Graph', tf.get_default_graph):
      return net.CapsNet(height=17, width=17, num_label=3).total_loss
  return model


def monodepth():
  net = load('monodepth', 'monodepth_model')
  conv2d = thin(net.tf.contrib.slim.conv2d, 8)
  net.slim = types.SimpleNamespace(**dict(vars(net.slim), conv2d=conv2d))
  made = net.monodepth_parameters(**MONODEPTH)

  def model(batch, is_training):
    return net.MonodepthModel(made, 'train', *batch).total_loss
  return model


def load_srgan():
  net, ops = load('SRGAN-tensorflow', 'lib.model', 'lib.ops')
  ops.keras, net.conv2 = tf.keras, thin(ops.conv2, 16)  # It imports no Keras, and asks for it.
  return net


def srgan():
  net = load_srgan()

  def model(batch, is_training):
    flags = types.SimpleNamespace(is_training=is_training, **SRGAN)
    with learning('discriminator'):
      real, fake, *_ = net.SRGAN(*batch, flags)
    with learning('generator'):
      made = net.SRGAN(*batch, flags)
    losses = -tf.log(real + flags.EPS) - tf.log(1 - fake + flags.EPS)
    losses -= flags.ratio * tf.log(made.discrim_fake_output + flags.EPS)
    return losses[:, 0] + 3 * tf.reduce_mean((made.gen_output - batch[1]) ** 2, [1, 2, 3])
  return model


def load_crnn():
  net = load('CRNN_Tensorflow', 'crnn_model.crnn_net')
  conv2d, net.CFG.ARCH.SEQ_LENGTH = net.cnn_basenet.CNNBaseModel.conv2d, 8
  net.ShadowNet.conv2d = lambda self, inputdata, out_channel, **named: conv2d(
      inputdata, out_channel // 32, **named)
  return net


def crnn():
  net = load_crnn()

  def model(batch, is_training):
    images, words = batch
    labels = net.tf.contrib.layers.dense_to_sparse(words, eos_token=-1)
    net.CFG.TRAIN.BATCH_SIZE = images.shape[0].value
    made = net.ShadowNet('train' if is_training else 'test', 8, 1, 6)
    return made.compute_loss(images, labels, 'shadow_net', False)[1]
  return model


def load_east():
  net, resnet, utils = load('EAST', 'model', 'nets.resnet_v1', 'nets.resnet_utils')
  conv2d = thin(net.tf.contrib.slim.conv2d, 16)
  slim = types.SimpleNamespace(**dict(vars(net.slim), conv2d=conv2d))
  net.slim = resnet.slim = utils.slim = slim
  return net


def east():
  net = load_east()

  def model(batch, is_training):
    images, score, places, mask = batch
    scores, found = net.model(images, is_training=is_training)
    return net.loss(*map(towers.all_rows, (score, scores, places, found, mask)))
  return model


def load_stargan():
  net, batches = load('StarGAN-Tensorflow', 'StarGAN'), mock.MagicMock()
  batches.from_tensor_slices().apply().apply().apply().make_one_shot_iterator.return_value = batches
  net.ImageData = mock.MagicMock
  stand_in = types.ModuleType('tensorflow')
  vars(stand_in).update(__getattr__=functools.partial(getattr, net.tf),
                        data=types.SimpleNamespace(Dataset=batches))
  net.tf = stand_in
  return net, batches


def stargan():
  net, batches = load_stargan()

  def model(batch, is_training):
    labels, places = towers.all_rows(batch[1], with_places=True)
    net.tf.random_shuffle = lambda _: tf.gather(tf.random.shuffle(labels), places)
    batches.get_next.return_value = batch

    def loss(part):
      made = net.StarGAN(None, types.SimpleNamespace(batch_size=tf.shape(batch[0])[0], **STARGAN))
      with learning(part):
        made.build_model()
      return getattr(made, part[0] + '_loss')
    return loss('discriminator') + loss('generator')
  return model


def speller():
  net = load('listen-attend-and-spell', 'model_helper')

  def model(batch, is_training):
    kept = []

    def loss(logits, targets, _, lengths, mode):
      mask = tf.sequence_mask(lengths, dtype=tf.float32)
      losses = cross_entropy(targets[:, :tf.shape(mask)[1]], logits)
      kept.append(towers.Weighted(losses, mask))
      return tf.reduce_mean(losses)
    net.compute_loss = loss
    net.las_model_fn(*batch, tf.estimator.ModeKeys.TRAIN, None, LISTENER)
    return kept[0]
  return model


def sac():
  net = load('spinningup/spinup/algos/tf1/sac', 'core')

  def act(part, scope, *inputs):
    def getter(get, name, *args, **named):
      named.update(trainable=scope == 'main')
      made = get(name, *args, **named)
      return made if part in name else tf.stop_gradient(made)
    with tf.variable_scope(scope, custom_getter=getter, reuse=tf.AUTO_REUSE):
      return net.mlp_actor_critic(*inputs, **ACTOR)

  def model(batch, is_training):
    seen, actions, then, rewards, ended = batch
    *_, q1, q2 = act('/q', 'main', seen, actions)
    _, policy, likelihood, *_ = act('/pi', 'main', seen, actions)
    *_, q1_policy, q2_policy = act('/pi', 'main', seen, policy)
    _, policy_then, likelihood_then, *_ = act('nothing', 'main', then, actions)
    *_, q1_then, q2_then = act('nothing', 'target', then, policy_then)
    for main, target in zip(net.get_vars('main'), net.get_vars('target')):
      tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign(target, 0.9 * target + 0.1 * main))
    values = tf.minimum(q1_then, q2_then) - 0.2 * likelihood_then
    goal = tf.stop_gradient(rewards + 0.99 * (1 - ended) * values)
    losses = 0.5 * ((goal - q1) ** 2 + (goal - q2) ** 2)
    return losses + 0.2 * likelihood - tf.minimum(q1_policy, q2_policy)
  return model


def load_voices():
  net, config = load('Speaker_Verification', 'utils', 'configuration', arguments=VOICES)
  return net, config.config


def voices():
  net, config = load_voices()

  def model(batch, is_training):
    w, b = [tf.get_variable(name, initializer=np.float32([value])) for name, value in (
        ('w', 10), ('b', -5))]
    sounds = tf.transpose(tf.reshape(batch[0], [-1, *batch[0].shape[2:]]), [1, 0, 2])
    with tf.variable_scope('lstm'):
      cells = tf.nn.rnn_cell.MultiRNNCell([tf.nn.rnn_cell.LSTMCell(
          config.hidden, num_proj=config.proj) for _ in range(config.num_layer)])
      found, _ = tf.nn.dynamic_rnn(cells, sounds, dtype=tf.float32, time_major=True)
    speakers = tf.reshape(net.normalize(found[-1]), [-1, config.M, config.proj])
    return net.loss_cal(net.similarity(towers.all_rows(speakers), w, b))
  return model


def voices_optimizer():
  def update(grads_and_vars, global_step):
    grads, weights = zip(*grads_and_vars)
    clipped, _ = tf.clip_by_global_norm(grads, 3.)
    scaled = [0.01 * grad for grad in clipped[:2]] + clipped[2:]
    return tf.train.GradientDescentOptimizer(0.01).apply_gradients(zip(scaled, weights))
  return update


def separation():
  net = load('pit-speech-separation', 'model.blstm')

  def model(batch, is_training):
    size, keep = tf.shape(batch[0])[0], 0.7 if is_training else 1.
    config = types.SimpleNamespace(batch_size=size, keep_prob=keep, **SEPARATION)
    return net.LSTM(config, *batch).loss / tf.cast(size, tf.float32)
  return model
