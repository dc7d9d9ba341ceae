"""The glue of repositories that draw, paint, segment, detect, and learn tasks from few pictures."""

import contextlib
import functools
import importlib
import os
import sys
import tempfile
import types
from unittest import mock

import numpy as np
import pytest

import towers
from tests.gallery.field import repositories
from tests.gallery.field.repositories import load, write
from tests.gallery.field.signals import by_all, learning, thin
from tests.gallery.programs import cross_entropy
from towers.tensorflow_v1 import tf

TASKS, POINTS = 3, 7
CAPTIONS = dict(dim_feature=[6, 8], dim_embed=5, dim_hidden=7, n_time_step=5, alpha_c=1.)
MIX = dict(batch=6, lr=0.002, wd=0.02, ema=0.999, beta=0.5, w_match=100., warmup_kimg=1,
           arch='resnet', scales=2, filters=4, repeat=1)
PHOTOS = types.SimpleNamespace(height=16, width=16, colors=3, mean=0., std=1.)
MAML = types.SimpleNamespace(
    datasource='omniglot', conv=True, norm='batch_norm', max_pool=False, num_filters=4,
    num_updates=2, update_lr=0.01, meta_lr=0.01, stop_grad=False, metatrain_iterations=1,
    update_batch_size=1)
SKETCH = dict(max_seq_len=POINTS, dec_rnn_size=6, enc_rnn_size=5, z_size=4, num_mixture=3)
UNET = dict(layers=2, features_root=2)
CONVOLUTION = '\n'.join(('[convolutional]', 'batch_normalize=1', 'filters=4', 'size=3', 'stride=1',
                         'pad=1', 'activation=leaky'))
DARKNET = '\n'.join((
    '[net]', 'height=16', 'width=16', 'channels=3', CONVOLUTION, '[maxpool]', 'size=2', 'stride=2',
    CONVOLUTION, '[dropout]', 'probability=.5', '[convolutional]', 'size=1', 'stride=1', 'pad=1',
    'filters=14', 'activation=linear', '[region]', 'anchors=1.1,1.2, 3.4,4.4', 'classes=2',
    'coords=4', 'num=2', 'object_scale=5', 'noobject_scale=1', 'class_scale=1', 'coord_scale=1'))
FLAGS = dict(pbLoad='', binary='', load='', threshold=-0.1, verbalise=False, keep=1, gpu=0.,
             summary='', train=True, trainer='rmsprop', lr=1e-5)
PGGAN = dict(num_channels=3, resolution=16, label_size=2, fmap_base=32, fmap_max=8)
POSE = types.SimpleNamespace(
    net_type='resnet_50', mean_pixel=[123.68, 116.779, 103.939], num_joints=3, weight_decay=1e-4,
    location_refinement=True, locref_huber_loss=True, locref_loss_weight=0.05,
    pairwise_predict=False, intermediate_supervision=True, intermediate_supervision_layer=3,
    weigh_part_predictions=True)
# TensorFlow 1.14 does not take the indices of its masks.
DETECTOR = dict(
    include_mask=False, transpose_input=False, use_tpu=False, num_classes=4,
    rpn_batch_size_per_im=16, rpn_pre_nms_topn=24, rpn_post_nms_topn=12, batch_size_per_im=8,
    fast_rcnn_mlp_head_dim=16, backbone='resnet18', precision='float32',
    conv0_space_to_depth_block_size=0)
# Of the layers of C3D, how many channels; the last ones are dense.
C3D = dict(c1=3, c2=4, c3a=4, c3b=4, c4a=5, c4b=5, c5a=6, c5b=6, d1=8, d2=8, out=3)
OCR = dict(
    batch_size=None, visualize=False, output_dir='', initial_learning_rate=1.,
    steps_per_checkpoint=1, model_dir=tempfile.gettempdir(), target_embedding_size=4,
    attn_num_hidden=4, attn_num_layers=2, clip_gradients=True, max_gradient_norm=5.,
    load_model=False, gpu_id=0, use_gru=False, max_image_width=32, max_image_height=32,
    max_prediction_length=3)
PIECE = dict(data_shape=[4, 48, 84, 2], beat_resolution=12, latent_dim=4, use_binary_neurons=False,
             nets=dict(generator='default', discriminator='default'))
MUSEGAN = dict(
    use_slope_annealing=False, gan_loss_type='wasserstein', use_gradient_penalties=True,
    initial_learning_rate=0.001, use_learning_rate_decay=True, adam=dict(beta1=0.5, beta2=0.9),
    learning_rate_schedule=dict(start=0, end=10, end_value=0.), save_summaries_steps=0)
FLOW = dict(filters=4, dequant_filters=4, components=2, blocks=1)
PLANET = types.SimpleNamespace(
    gradient_heads=['image', 'reward'], free_nats=0.1, overshooting_distance=3,
    os_stop_posterior_grad=True,
    loss_scales=dict(image=0.001, reward=1., divergence=1., overshooting=0.5))
CLOUD = types.SimpleNamespace(
    xconv_params=[dict(K=4, D=1, P=-1, C=8, links=[]), dict(K=4, D=2, P=8, C=8, links=[]),
                  dict(K=3, D=2, P=6, C=12, links=[0])],
    fc_params=[dict(C=8, dropout_rate=0.), dict(C=6, dropout_rate=0.5)], num_class=5,
    with_X_transformation=True, sorting_method=None, sampling='random', with_global=True)
MOLGAN = dict(vertexes=5, edges=4, nodes=3, embedding_dim=6, decoder_units=(8, 8),
              discriminator_units=((8, 6), 8, (8, 6)), batch_discriminator=False)
FACTORS = {
    'encoder.num_latent': 4, 'vae_optimizer.optimizer_fn': tf.train.AdamOptimizer,
    'discriminator_optimizer.optimizer_fn': tf.train.AdamOptimizer}
TRACKER = dict(gt_config=dict(rPos=16, rNeg=0))
SIMCLR = dict(use_tpu=False, image_size=32, train_batch_size=9, train_summary_steps=0,
              proj_out_dim=8, model_dir=tempfile.gettempdir())


def maml():
  net, utils = load('maml', 'maml', 'utils')
  net.FLAGS = utils.FLAGS = MAML

  def model(batch, is_training):
    net.FLAGS.meta_batch_size = batch[0].shape[0].value
    made = net.MAML(64, TASKS, test_num_updates=1)
    made.construct_model(dict(zip(('inputa', 'inputb', 'labela', 'labelb'), batch)))
    updates = tf.get_collection_ref(tf.GraphKeys.UPDATE_OPS)
    updates[:] = [op for op in updates if '/while/' not in op.name]
    return made.total_losses2[-1]
  return model


def sketch():
  net = load('magenta', 'magenta.models.sketch_rnn.model',
             without=('magenta.common', 'magenta.pipelines'))

  def model(batch, is_training):
    strokes, lengths = batch
    hps = net.get_default_hparams().override_from_dict(SKETCH)
    hps.batch_size, hps.use_recurrent_dropout = strokes.shape[0].value, bool(is_training)
    made = net.Model(hps)
    step = tf.cast(tf.train.get_or_create_global_step(), tf.float32)
    weight = hps.kl_weight - (hps.kl_weight - hps.kl_weight_start) * hps.kl_decay_rate ** step
    return towers.fed({made.input_data: strokes, made.sequence_lengths: lengths,
                       made.kl_weight: weight}, made.cost)
  return model


def unet():
  net = load('tf_unet', 'tf_unet.unet')

  def model(batch, is_training):
    images, labels = batch
    with mock.patch('tensorflow.reset_default_graph'):
      made = net.Unet(1, 2, cost_kwargs=dict(regularizer=1e-3), **UNET)
    return towers.fed({made.x: images, made.y: labels,
                       made.keep_prob: 0.75 if is_training else 1.}, made.cost)
  return model


def darkflow():
  net = load('darkflow', 'darkflow.net.build')
  flags = types.SimpleNamespace(model=write(DARKNET), labels=write('cat\ndog'), **FLAGS)

  def model(batch, is_training):
    images, wanted = batch
    with mock.patch('tensorflow.Graph', tf.get_default_graph):
      made = net.TFNet(flags)
    fed = {made.framework.placeholders[name]: value for name, value in wanted.items()}
    return towers.fed({made.inp: images, **fed, **(made.feed if is_training else {})},
                      made.framework.loss)
  return model


def vgg_weights(_):
  """What the file of VGG-19 has, with few channels."""
  random, layers, channels = np.random.RandomState(2), [], 3
  for block, number in enumerate((2, 2, 4, 4, 4)):
    for _ in range(number):
      kernel = random.randn(3, 3, channels, 2 + block).astype(np.float32) / 9
      channels = 2 + block
      layers += [[[[[(kernel, np.zeros(channels, np.float32))]]]], None]
    layers.append(None)
  return {'normalization': [[[np.zeros([1, 1, 3])]]], 'layers': [layers]}


def style():
  net, vgg, names = load('fast-style-transfer/src', 'transform', 'vgg', 'optimize')
  vgg.scipy = types.SimpleNamespace(io=types.SimpleNamespace(loadmat=vgg_weights))
  picture = 255 * np.random.RandomState(4).rand(1, 16, 16, 3)

  def model(batch, is_training):
    def look(images):
      layers = vgg.net('', vgg.preprocess(images))
      rows = [tf.reshape(layers[name], [images.shape[0], -1, layers[name].shape[3]])
              for name in names.STYLE_LAYERS]
      return layers[names.CONTENT_LAYER], [
          tf.matmul(row, row, transpose_a=True) / row.shape[1:].num_elements() for row in rows]
    painted = net.net(batch[0] / 255)
    (content, found), (wanted, _) = look(painted), look(batch[0])
    _, style = look(tf.constant(picture, tf.float32))
    grams = sum(tf.reduce_mean((gram - each) ** 2, [1, 2]) for gram, each in zip(found, style))
    losses = 7.5 * tf.reduce_mean((content - wanted) ** 2, [1, 2, 3]) + 100 * grams
    return losses + 200 * tf.image.total_variation(painted) / (16 * 15 * 3)
  return model


@functools.lru_cache(maxsize=None)
def load_simclr():
  net, objective, resnet, *others = load(
      'simclr', 'model', 'objective', 'resnet', 'model_util', 'run')
  for module in (net, resnet, *others):
    vars(module.FLAGS).update(SIMCLR)
  convolution = resnet.conv2d_fixed_padding
  resnet.conv2d_fixed_padding = lambda filters, **named: convolution(
      filters=filters // 16, **named)
  return net, resnet, objective, objective.add_contrastive_loss


def simclr():
  net, resnet, objective, loss = load_simclr()
  objective.add_contrastive_loss = lambda hidden, **named: loss(tf.concat(
      [towers.all_rows(half) for half in tf.split(hidden, 2)], 0), **named)
  model_fn = net.build_model_fn(resnet.resnet_v1(18, 1), 3, 24)

  def model(batch, is_training):
    labels = {'labels': tf.one_hot(batch[1], 3), 'mask': tf.ones_like(batch[1])}
    mode = tf.estimator.ModeKeys.TRAIN if is_training else tf.estimator.ModeKeys.EVAL
    model_fn(batch[0], labels, mode, {'batch_size': tf.shape(batch[0])[0]})
    return tf.add_n(tf.losses.get_losses(tf.get_default_graph().get_name_scope()))
  return model


@functools.lru_cache(maxsize=None)
def load_dltk():
  path = os.path.join(repositories.FOLDER, 'DLTK')
  with mock.patch.object(sys, 'path', [path, *sys.path]):
    net = load('DLTK/examples/applications/MRBrainS13_tissue_segmentation', 'train')
  made = net.residual_unet_3d
  net.residual_unet_3d = lambda **named: made(**dict(named, filters=(2, 2, 3, 3)))
  return net


def dltk():
  net = load_dltk()

  def model(batch, is_training):
    mode = tf.estimator.ModeKeys.TRAIN if is_training else tf.estimator.ModeKeys.EVAL
    return net.model_fn(*batch, mode, {'learning_rate': 0.001}).loss
  return model


def channels_last(layer):
  """Returns a layer for channels first, which CPUs do not have."""
  def move(sizes):
    return [sizes[0], *sizes[2:], sizes[1]] if isinstance(sizes, list) else sizes

  def called(x, *args, data_format, **named):
    named = {name: move(value) for name, value in named.items()}
    y = layer(tf.transpose(x, [0, 2, 3, 1]), *map(move, args), **named)
    return tf.transpose(y, [0, 3, 1, 2])
  return called


@functools.lru_cache(maxsize=None)
def load_pggan():
  util, networks, losses = load('progressive_growing_of_gans', 'tfutil', 'networks', 'loss')
  nn, stand_in, find = types.ModuleType('nn'), types.ModuleType('tensorflow'), util.import_module
  vars(nn).update(
      {name: channels_last(getattr(tf.nn, name)) for name in (
          'conv2d', 'conv2d_transpose', 'avg_pool')},
      __getattr__=functools.partial(getattr, tf.nn))
  vars(stand_in).update(nn=nn, __getattr__=functools.partial(getattr, networks.tf))
  networks.tf = stand_in
  util.import_module = lambda name: (
      (networks, name[9:]) if name.startswith('networks.') else find(name))
  return util, networks, losses, networks.minibatch_stddev_layer


def pggan():
  util, networks, losses, layer = load_pggan()
  util.autosummary = lambda name, value: value
  networks.minibatch_stddev_layer = lambda x, size: by_all(layer, x, group_size=size)
  with tf.Session():
    G, D = [util.Network(name, func=f'networks.{name}_paper', **PGGAN) for name in 'GD']

  def model(batch, is_training):
    images, labels = batch
    data = types.SimpleNamespace(get_random_labels_tf=lambda size: labels)
    given = G, D, util.Optimizer(), data, tf.shape(images)[0]
    with learning('D/'):
      loss = tf.reduce_mean(losses.D_wgangp_acgan(*given, images, labels))
    with learning('G/'):
      return loss + tf.reduce_mean(losses.G_wgan_acgan(*given))
  return model


def c3d_weights(train):
  """Makes what the script of C3D does before its towers, in few channels."""
  weights, biases, before = {}, {}, 3
  for name, size in C3D.items():
    shape = [3, 3, 3, before, size] if name[0] == 'c' else [before, size]
    weights[name if name == 'out' else 'w' + name] = train._variable_with_weight_decay(
        'w' + name, shape, 0.0005)
    biases[name if name == 'out' else 'b' + name] = train._variable_with_weight_decay(
        'b' + name, [size], 0.)
    before = size
  return weights, biases


def c3d():
  net, train = load('C3D-tensorflow', 'c3d_model', 'train_c3d_ucf101', without=('input_data',))

  def model(batch, is_training):
    clips, labels = batch
    made = c3d_weights(train)
    penalties = tf.get_collection('weightdecay_losses', tf.get_default_graph().get_name_scope())
    tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, tf.add_n(penalties))
    logits = net.inference_c3d(clips, 0.5 if is_training else 1., clips.shape[0].value, *made)
    return cross_entropy(labels, logits)
  return model


def load_ocr():
  net, parts = load('attention-ocr', 'aocr.model.model', 'aocr.model.seq2seq')
  # Where it looks for this first, the stand-in for what is not installed is found.
  parts.linear = importlib.import_module('tensorflow.contrib.rnn.python.ops.core_rnn_cell')._linear
  return net


def ocr():
  net = load_ocr()

  def model(batch, is_training):
    files, letters, weights = batch
    made = net.Model('train' if is_training else 'valid', session=tf.Session(), **OCR)
    columns = [tf.unstack(part, axis=1) for part in (letters, weights)]
    fed = dict(zip(made.decoder_inputs + made.target_weights, sum(columns, [])))
    return towers.fed({made.img_pl: files, **fed}, made.attention_decoder_model.loss)
  return model


def pose():
  net = load('pose-tensorflow', 'nnet.pose_net')

  def model(batch, is_training):
    made = net.PoseNet(POSE)
    found, wanted = [{name: towers.all_rows(part) for name, part in parts} for parts in (
        made.get_net(batch[0]).items(), zip(net.Batch, batch))]
    return made.part_detection_loss(found, wanted, True, False, True)['total_loss']
  return model


def load_rcnn():
  net, sampler, losses, config = load('tpu/models/official/mask_rcnn', *(
      'mask_rcnn_model', 'object_detection.balanced_positive_negative_sampler', 'losses',
      'configs.mask_rcnn_config'))
  return net, sampler, losses, dict(config.MASK_RCNN_CFG, **DETECTOR)


def rcnn():
  net, sampler, losses, config = load_rcnn()

  def model(batch, is_training):
    size, orders = batch[0]['images'].shape[0].value, []

    def shuffle(numbers):  # It draws for one image after another.
      sizes = [size, *numbers.shape.as_list()]
      orders[:] = orders or tf.unstack(tf.argsort(tf.random_uniform(sizes)))
      return orders.pop(0)
    with mock.patch.object(sampler.tf, 'random_shuffle', shuffle):
      found = net.build_model_graph(*batch, True, config)
    found, labels = tf.nest.map_structure(towers.all_rows, (found, batch[1]))
    sizes = dict(config, batch_size=found['class_outputs'].shape[0].value)
    return losses.rpn_loss(
        found['rpn_score_outputs'], found['rpn_box_outputs'], labels, sizes)[0] + (
            losses.fast_rcnn_loss(*(found[name] for name in (
                'class_outputs', 'box_outputs', 'class_targets', 'box_targets')), sizes)[0])
  return model


class Vocabulary(dict):
  """One of Python 2."""
  iteritems = dict.items


def captions():
  net = load('show-attend-and-tell', 'core.model')

  def model(batch, is_training):
    words = Vocabulary({'<NULL>': 0, '<START>': 1}, **{f'w{n}': n for n in range(2, 11)})
    made = net.CaptionGenerator(words, **CAPTIONS)
    return towers.fed({made.features: batch[0], made.captions: batch[1]}, made.build_model())
  return model


def load_mixmatch():
  with mock.patch.dict(os.environ, ML_DATA=''):
    return load('mixmatch', 'mixmatch', 'libml.layers')


def draw_beta(*_):
  """Beta(0.5, 0.5) by a uniform number, which is drawn by place, as gamma numbers are not."""
  return types.SimpleNamespace(sample=lambda shape: tf.square(tf.sin(
      tf.random_uniform(shape) * np.pi / 2)))


def mixmatch():
  net, layers = load_mixmatch()
  interleave, mix, losses = layers.interleave, net.MixMode.__call__, []

  def for_all(function, *lists):
    rows = [[towers.all_rows(part, with_places=True) for part in parts] for parts in lists]
    made = function(*([part for part, _ in parts] for parts in rows))
    return tf.nest.map_structure(lambda part: tf.gather(part, rows[0][0][1]), made)

  def model(batch, is_training):
    made, step = object.__new__(net.MixMatch), tf.train.get_or_create_global_step()
    made.nclass, made.dataset, made.step = 3, PHOTOS, step + 100
    with contextlib.ExitStack() as patches:
      for patch in (
          (net.tf.train.Optimizer, 'minimize',
           lambda self, loss, **_: losses.append(loss) or tf.no_op()),
          (net.tf.distributions, 'Beta', draw_beta),
          (layers, 'interleave', lambda x, size: for_all(lambda x: interleave(x, size), x)),
          (net.MixMode, '__call__', lambda self, x, kinds, betas: for_all(
              lambda x, kinds: mix(self, x, kinds, betas), x, kinds))):
        patches.enter_context(mock.patch.object(*patch))
      ops = made.model(**MIX)
    return towers.fed(dict(zip((ops.x, ops.y, ops.label), batch)), losses.pop())
  return model


def load_musegan():
  net, generator, discriminator, ops = load('musegan/src', 'musegan.model', *(
      'musegan.presets.' + name for name in ('generator.default', 'discriminator.default', 'ops')))
  generator.tconv3d, discriminator.conv3d = thin(ops.tconv3d, 16), thin(ops.conv3d, 16)
  parts = dict(generator=generator, discriminator=discriminator)
  net.load_component = lambda kind, _, name: getattr(parts[kind], name)
  return net


def musegan():
  net = load_musegan()

  def model(batch, is_training):
    config = dict(MUSEGAN, batch_size=tf.shape(batch[0])[0])

    def loss(part, name):
      with learning(part):
        return net.Model(PIECE)(batch[0], mode='train', params=PIECE, config=config)[name]
    return loss('Discriminator', 'dis_loss') + loss('Generator', 'gen_loss')
  return model


def flow():
  net, flows, cifar = load('flowpp', *(
      'flows.' + name for name in ('flow_training', 'flows', 'run_cifar')))

  def losses(batch, drop, init=False):
    noise, whole = cifar.construct(**FLOW)
    # All of the couplings take minutes to build.
    noise.dequant_flow.flows[5:-2], whole.flows[10:] = [], whole.flows[18:19]
    named = dict(vcfg=flows.VarConfig(init=init), dropout_p=drop, verbose=False)
    made = net.build_forward(x=batch[0], dequant_flow=noise, flow=whole, flow_kwargs=named)
    return -made[3]

  def model(batch, is_training):
    return losses(batch, 0.2 if is_training else 0.)
  model.init_from = lambda batch: losses(batch, 0.2, init=True)
  return model


def load_planet():
  pytest.importorskip('tensorflow_probability')
  net, models, conv, basic, tools = load('planet', *('planet.' + name for name in (
      'training.utility', 'models', 'networks.conv_ha', 'networks.basic', 'tools')))
  PLANET.heads = dict(image=functools.partial(conv.decoder, data_shape=[64, 64, 3]),
                      reward=functools.partial(basic.feed_forward, data_shape=[], units=8))
  return net, models, conv, tools


def planet():
  net, models, conv, tools = load_planet()

  def model(batch, is_training):
    cell = models.RSSM(state_size=3, belief_size=4, embed_size=5)
    seen = tf.make_template('encoder', conv.encoder)(batch)
    heads = {name: tf.make_template(name, head) for name, head in PLANET.heads.items()}
    graph = tools.AttrDict(cell=cell, heads=heads, data=batch, embedded=seen)
    before, after = tools.unroll.closed_loop(cell, seen, batch['action'])
    goals = net.compute_objectives(after, before, batch, graph, PLANET)
    return tf.add_n([PLANET.loss_scales[goal.name] * (
        goal.value if goal.goal is min else -goal.value) for goal in goals])
  return model


def pointcnn():
  net, points = load('PointCNN', 'pointcnn_cls', 'pointfly')

  def model(batch, is_training):
    places, turned, labels = batch
    places = points.augment(places, turned, 0.01)
    logits = net.Net(places, None, tf.convert_to_tensor(is_training), CLOUD).logits
    penalties = tf.get_collection_ref(tf.GraphKeys.REGULARIZATION_LOSSES)
    penalties[:] = [1e-5 * penalty for penalty in penalties]
    wanted = tf.tile(labels[:, None], (1, tf.shape(logits)[1]))
    return tf.reduce_mean(cross_entropy(wanted, logits), 1)
  return model


def mean_of_all(x, axes):
  """Returns the mean of the rows of all towers."""
  total, count = tf.reduce_sum(x, axes), tf.reduce_sum(tf.ones_like(x), axes)
  return towers.all_sum(total) / towers.all_sum(count)


@functools.lru_cache(maxsize=None)
def load_teacher():
  net, layers = load(
      'mean-teacher/tensorflow', 'mean_teacher.model', 'mean_teacher.weight_norm')
  layers.conv2d, net.assert_shape = thin(layers.conv2d, 16), lambda *_: None
  stand_in, make = types.ModuleType('tensorflow'), net.Model
  vars(stand_in).update(__getattr__=functools.partial(getattr, layers.tf))
  layers.tf = stand_in
  variables = importlib.import_module('tensorflow.python.ops.variables')

  def make_fast():
    # It is of TensorFlow 1.2, and 1.14 would look for cycles for hours.
    with mock.patch.object(variables, '_has_cycle', return_value=False):
      return make()
  net.Model = make_fast
  return net, layers


def teacher():
  net, layers = load_teacher()
  layers.tf.reduce_mean = mean_of_all

  def model(batch, is_training):
    made = net.Model()
    return towers.fed({made.images: batch[0], made.labels: batch[1],
                       made.is_training: is_training}, made.class_costs_1 + made.cons_costs_mt)
  model.init_from = lambda batch: model(batch, True)
  return model


def load_molgan():
  net, models, losses = load('MolGAN', 'models.gan', 'models', 'optimizers.gan')
  make = functools.partial(net.GraphGANModel, decoder=models.decoder_adj,
                           discriminator=models.encoder_rgcn, **MOLGAN)
  return make, functools.partial(losses.GraphGANOptimizer, feature_matching=False)


def molgan():
  make, train = load_molgan()

  def model(batch, is_training):
    def loss(part, name):
      with learning(part):
        made = make()
        losses = train(made)
      names = made.edges_labels, made.nodes_labels, made.embeddings, made.rewardR, made.rewardF
      penalty = 10 * losses.grad_penalty if name == 'loss_D' else 0
      return towers.fed({**dict(zip(names, batch)), made.training: is_training,
                         made.dropout_rate: 0.1}, getattr(losses, name) + penalty)
    return loss('discriminator', 'loss_D') + loss('generator', 'loss_G') + loss('value', 'loss_V')
  return model


@functools.lru_cache(maxsize=None)
def load_factor_vae():
  gin, _ = map(pytest.importorskip, ('gin', 'tensorflow_probability'))
  methods = 'disentanglement_lib.methods.'
  net, parts, losses = load('disentanglement_lib', methods + 'unsupervised.vae', *(
      methods + 'shared.' + name for name in ('architectures', 'losses')))
  for name, value in dict(FACTORS, **{
      'encoder.encoder_fn': parts.conv_encoder, 'decoder.decoder_fn': parts.deconv_decoder,
      'discriminator.discriminator_fn': parts.fc_discriminator,
      'reconstruction_loss.loss_fn': losses.bernoulli_loss}).items():
    gin.bind_parameter(name, value)
  return net, net.shuffle_codes


def factor_vae():
  net, shuffle = load_factor_vae()
  net.shuffle_codes = functools.partial(by_all, shuffle)

  def model(batch, is_training):
    mode = tf.estimator.ModeKeys.TRAIN if is_training else tf.estimator.ModeKeys.EVAL

    def loss(part):
      with learning(part):
        return net.FactorVAE(gamma=6.).model_fn(batch[0], None, mode, None).loss
    name = loss('discriminator').name.replace('factor_VAE', 'discriminator')
    return loss('coder') - tf.get_default_graph().get_tensor_by_name(name)
  return model


def load_tracker():
  net, embeddings, config = load('SiamFC-TensorFlow', 'siamese_model', *(
      'embeddings.convolutional_alexnet', 'configuration'))
  conv2d = thin(net.tf.contrib.slim.conv2d, 16)
  embeddings.slim = types.SimpleNamespace(**dict(vars(embeddings.slim), conv2d=conv2d))
  return net, config.MODEL_CONFIG


def tracker():
  net, config = load_tracker()

  def model(batch, is_training):
    data = dict(batch_size=tf.shape(batch[0])[0])
    made = net.SiameseModel(config, dict(
        TRACKER, train_data_config=data, validation_data_config=data),
        'train' if is_training else 'validation')
    made.exemplars, made.instances = batch
    made.build_image_embeddings()
    made.build_template()
    made.build_detection()
    made.build_loss()
    return made.batch_loss
  return model


def load_segments():
  net, train, config = load('ICNet-tensorflow', 'model', 'train', 'utils.config')
  made = config.Config('cityscapes', is_training=True, filter_scale=1 / 8)
  made.param = dict(num_classes=5, ignore_label=255)
  return net, train, made


def segments():
  net, train, config = load_segments()

  def model(batch, is_training):
    images, labels = batch
    config.is_training = is_training
    made = net.ICNet_BN(config, 'train', types.SimpleNamespace(
        next_image=images, next_label=labels))
    made.layers = {name: towers.all_rows(made.layers[name]) for name in (
        'sub4_out', 'sub24_out', 'conv6_cls')}
    return train.create_losses(made, towers.all_rows(labels), config)[-1]
  return model
