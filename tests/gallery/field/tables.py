"""The glue of repositories with models of tables and graphs."""

import contextlib
import functools
import sys
import tempfile
import types
from unittest import mock

import numpy as np
import pytest

import towers
from tests.gallery.field.repositories import Missing, load, within
from tests.gallery.field.signals import by_all
from tests.gallery.programs import cross_entropy
from towers.tensorflow_v1 import tf

FEATURES, NODES, CLASSES = 20, 30, 4
DEEPFM = dict(embedding_size=3, deep_layers=[8, 8], batch_norm=1, l2_reg=0.01)
GRAPHSAGE = types.SimpleNamespace(learning_rate=0.01, weight_decay=0.01)
GAT = dict(hid_units=[4], n_heads=[2, 1])
LISTED = 4
ITEMS, VISITS = 12, 5
SASREC = types.SimpleNamespace(maxlen=VISITS, hidden_units=6, l2_emb=0., dropout_rate=0.3,
                               num_blocks=2, num_heads=2, lr=0.01)
_random = np.random.RandomState(3)
ADJACENCY = _random.randint(NODES, size=(NODES, 5)).astype(np.int32)
NODE_FEATURES = _random.randn(NODES, 6).astype(np.float32)
KINDS = np.eye(CLASSES, dtype=np.float32)[_random.randint(CLASSES, size=NODES)]
GCN = types.SimpleNamespace(learning_rate=0.01, weight_decay=5e-4, hidden1=8)
EDGES = np.argwhere(_random.rand(NODES, NODES) < 0.1)
ROADS = _random.rand(5, 5).astype(np.float32)
DCRNN = dict(
    max_diffusion_step=2, cl_decay_steps=10, filter_type='dual_random_walk', horizon=3,
    num_nodes=len(ROADS), num_rnn_layers=2, rnn_units=4, seq_len=3, use_curriculum_learning=True,
    input_dim=2, output_dim=1)
QUANTILES = dict(num_tau_samples=5, num_tau_prime_samples=4, num_quantile_samples=3,
                 quantile_embedding_dim=8)
GAME = dict(env_name='game', env_type='simple', screen_width=36, screen_height=36,
            cnn_format='NHWC', dueling=True)
MOLECULE = dict(n_interactions=2, n_basis=4, n_filters=4, cutoff=3., gap=1., n_embeddings=6)
ATOMS, ENTITIES, RELATIONS = 6, 110, 3
KGAT = types.SimpleNamespace(
    adj_type='si', adj_uni_type='sum', alg_type='bi', lr=0.01, embed_size=4, kge_size=4,
    layer_size='[4, 3]', regs='[1e-2, 1e-2]', verbose=0)
RIPPLE = types.SimpleNamespace(
    dim=4, n_hop=2, kge_weight=0.01, l2_weight=1e-3, lr=0.02, n_memory=VISITS,
    item_update_mode='plus_transform', using_all_hops=True)
SCREEN, ALONE = (84, 84), types.SimpleNamespace(Get_size=lambda: 1, Get_rank=lambda: 0)
MEAN, SPREAD = np.full([*SCREEN, 1], 100.), np.full([*SCREEN, 1], 50.)


def deepfm():
  net = load('DeepFM', 'DeepFM')

  def model(batch, is_training):
    index, value, label = batch
    with mock.patch('tensorflow.Graph', tf.get_default_graph):
      made = net.DeepFM(FEATURES, 4, **DEEPFM)
    keep = [0.5 if is_training else 1.] * 3
    return towers.fed({
        made.feat_index: index, made.feat_value: value, made.label: label,
        made.dropout_keep_fm: keep[:2], made.dropout_keep_deep: keep,
        made.train_phase: is_training}, made.loss)
  return model


def graphsage():
  net, models, samplers, layers = load('GraphSAGE', *(
      'graphsage.' + name for name in ('supervised_models', 'models', 'neigh_samplers', 'layers')))
  net.FLAGS = models.FLAGS = layers.FLAGS = GRAPHSAGE

  def model(batch, is_training):
    layers._LAYER_UIDS.clear()  # Else each tower's layers have other names.
    neighbours = tf.get_variable('adj', dtype=tf.int32, initializer=ADJACENCY, trainable=False)
    sample = samplers.UniformNeighborSampler(neighbours)
    hops = [models.SAGEInfo('node', sample, number, 4) for number in (3, 2)]
    inputs = dict(batch=batch[0], labels=batch[1], batch_size=tf.shape(batch[0])[0],
                  dropout=0.3 if is_training else 0.)
    return net.SupervisedGraphsage(CLASSES, inputs, NODE_FEATURES, neighbours, None, hops).loss
  return model


def gat():
  net = load('GAT', 'models')

  def model(batch, is_training):
    features, biases, labels, mask = batch
    drop = 0.6 if is_training else 0.
    logits = net.GAT.inference(features, CLASSES, 7, is_training, drop, drop, biases, **GAT)
    losses = tf.nn.softmax_cross_entropy_with_logits_v2(labels=labels, logits=logits)
    return towers.Weighted(losses, mask)
  return model


def sasrec():
  net = load('SASRec', 'model')

  def model(batch, is_training):
    users, items, seen, unseen = batch
    made = net.Model(0, ITEMS, SASREC)
    losses = -tf.log(tf.sigmoid(made.pos_logits) + 1e-24) - tf.log(
        1 - tf.sigmoid(made.neg_logits) + 1e-24)
    weights = tf.cast(tf.not_equal(seen, 0), tf.float32)
    return towers.fed({made.u: users, made.input_seq: items, made.pos: seen, made.neg: unseen,
                       made.is_training: is_training},
                      towers.Weighted(tf.reshape(losses, tf.shape(seen)), weights))
  return model


def gcn():
  net, layers = load('gcn', 'gcn.models', 'gcn.layers')
  net.FLAGS = GCN

  def model(batch, is_training):
    layers._LAYER_UIDS.clear()
    [nodes] = batch
    features = layers.tf.contrib.layers.dense_to_sparse(tf.constant(NODE_FEATURES))
    ones = tf.ones([len(EDGES)])
    made = net.GCN(dict(
        features=features, support=[tf.SparseTensor(EDGES, ones / 3, [NODES, NODES])],
        labels=tf.constant(KINDS), labels_mask=tf.scatter_nd(
            nodes[:, None], tf.ones_like(nodes), [NODES]),
        dropout=0.5 if is_training else 0., num_features_nonzero=[NODE_FEATURES.size]), 6)
    return made.loss
  return model


def dqn():
  net, config = load('DQN-tensorflow', 'dqn.agent', 'config')
  net.reduce, net.xrange = functools.reduce, range  # It is of Python 2.
  for name, value in GAME.items():
    setattr(config.M1, name, value)

  def model(batch, is_training):
    seen, actions, rewards, then, ended = batch
    made = object.__new__(net.Agent)
    with tf.Session() as session, within(tempfile.mkdtemp()), contextlib.suppress(TypeError), \
        tf.variable_scope(tf.get_variable_scope(), custom_getter=lambda get, name, *args, **named:
                          get(name, *args, **dict(named, trainable='target' not in name))):
      made.__init__(config.M1, types.SimpleNamespace(action_size=3), session)
    for name, value in made.t_w.items():
      copied = tf.where(tf.train.get_or_create_global_step() % 2 > 0, value, made.w[name])
      tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, value.assign(copied))
    best = towers.fed({made.target_s_t: then}, tf.reduce_max(made.target_q, 1))
    goal = tf.stop_gradient(rewards + made.discount * (1 - ended) * best)
    return towers.fed({made.s_t: seen, made.action: actions, made.target_q_t: goal}, made.loss)
  return model


class Coordinates:
  """What the repository takes of a sparse matrix of SciPy."""

  def __init__(self, matrix):
    self._matrix, self.shape = matrix, matrix.shape
    self.row, self.col = np.nonzero(matrix)
    self.data = matrix[self.row, self.col]

  def __getitem__(self, rows):
    return Coordinates(self._matrix[rows])

  def tocoo(self):
    return self

  def astype(self, kind):
    return Coordinates(self._matrix.astype(kind))

  @property
  def T(self):
    return Coordinates(self._matrix.T)


def load_dcrnn():
  net, utils = load('DCRNN', 'model.dcrnn_model', 'lib.utils')
  utils.calculate_random_walk_matrix = lambda roads: Coordinates(
      roads / roads.sum(1, keepdims=True))
  return net


def dcrnn():
  net = load_dcrnn()

  def model(batch, is_training):
    seen, wanted = batch
    made = net.DCRNNModel(bool(is_training), seen.shape[0].value, None, ROADS, **DCRNN)
    losses = tf.abs(made.outputs - wanted[..., :1])
    losses = towers.Weighted(losses, tf.not_equal(wanted[..., :1], 0))
    return towers.fed({made.inputs: seen, made.labels: wanted}, losses)
  return model


@functools.lru_cache(maxsize=None)
def load_dien():
  cells, core = [pytest.importorskip(f'tensorflow.{name}') for name in (
      'python.ops.rnn_cell_impl', 'contrib.rnn.python.ops.core_rnn_cell')]
  # It is of TensorFlow 1.4.
  with mock.patch.multiple(cells, create=True, _Linear=core._Linear,
                           _like_rnncell=lambda cell: True):
    net = load('dien/script', 'model')
  return net, net.dice


def dien():
  net, dice = load_dien()
  net.dice = functools.partial(by_all, dice)

  def model(batch, is_training):
    made = net.Model_DIN_V2_Gru_Vec_attGru_Neg(24, 20, 5, 18, 36, 36)
    fed = {getattr(made, name): part for name, part in batch.items()}
    return towers.fed(fed, made.loss)
  return model


def load_deepctr():
  package, nets, columns, core = load('DeepCTR', 'deepctr', *(
      'deepctr.' + name for name in ('models', 'feature_column', 'layers.core')))
  sys.modules['deepctr'] = package  # It imports parts of itself later.
  core.DNN.__module__ = 'keras.layers'  # AutoGraph of 1.14, which leaves these alone, fails on it.
  return nets, columns


def deepctr():
  nets, columns = load_deepctr()

  def make():
    seen = columns.SparseFeat('hist_item', 12, 4, embedding_name='item')
    features = [columns.SparseFeat('item', 12, 4), columns.SparseFeat('user', 9, 4),
                columns.DenseFeat('age', 2), columns.VarLenSparseFeat(seen, 5, 'mean')]
    return nets.xDeepFM(features, features, (8, 8), (6, 6), l2_reg_dnn=0.01, dnn_dropout=0.3,
                        dnn_use_bn=True)
  return towers.KerasModel(make, loss='binary_crossentropy')


def load_curiosity():
  agents, policies, base = load('random-network-distillation', *(
      'ppo_agent', 'policies.cnn_gru_policy_dynamics', 'stochastic_policy'))
  kinds = load('baselines', 'baselines.common.distributions')
  base.make_pdtype = lambda space: kinds.CategoricalPdType(space.n)
  agents.sync_from_root = lambda *_: None  # There is no MPI.
  policies.GRUCell.__module__ = 'keras.layers'  # As of DeepCTR.
  spaces = dict(ob_space=base.spaces.Box(shape=(*SCREEN, 4), dtype=np.dtype('uint8')),
                ac_space=types.SimpleNamespace(n=3))
  policy = functools.partial(policies.CnnGruPolicy, 'pi', policy_size='small', hidsize=4,
                             memsize=4, **spaces)
  return functools.partial(agents.PpoAgent, scope='ppo', stochpol_fn=policy, nsteps=3,
                           ent_coef=0.01, comm_train=ALONE, **spaces)


def curiosity():
  make = load_curiosity()

  def model(batch, is_training):
    with tf.Session(), mock.patch.dict(sys.modules, mpi4py=Missing('mpi4py')):
      made = make()
    policy = made.stochpol
    names = (policy.ph_ob[None], policy.ph_ac, policy.ph_istate, policy.ph_new, made.ph_adv,
             made.ph_ret_int, made.ph_ret_ext, made.ph_oldnlp)
    return towers.fed({**dict(zip(names, batch)), made.ph_cliprange: 0.1,
                       policy.ph_mean: MEAN, policy.ph_std: SPREAD}, made._losses[0])
  return model


def quantiles():
  net = load('dopamine', 'dopamine.agents.implicit_quantile.implicit_quantile_agent')

  def model(batch, is_training):
    replay = types.SimpleNamespace(batch_size=batch['rewards'].shape[0].value, **batch)
    with mock.patch.object(net.ImplicitQuantileAgent, '_build_replay_buffer', lambda *_: replay):
      made = net.ImplicitQuantileAgent(None, 3, **QUANTILES)
    return made._train_op[1]
  return model


def load_graph_nets():
  pytest.importorskip('sonnet')
  net, graphs, utils = load('graph_nets', *(
      'graph_nets.' + name for name in ('demos.models', 'graphs', 'utils_tf')))
  utils.tree = tf.nest  # Which is the same.
  return net, graphs, utils


def graph_nets():
  net, graphs, utils = load_graph_nets()

  def model(batch, is_training):
    nodes, sizes, wanted, states = batch
    mask = tf.sequence_mask(sizes, nodes.shape[1])
    graph = utils.fully_connect_graph_dynamic(graphs.GraphsTuple(
        nodes=tf.boolean_mask(nodes, mask), globals=states, edges=None, senders=None,
        receivers=None, n_node=sizes, n_edge=tf.zeros_like(sizes)))
    *_, found = net.EncodeProcessDecode(None, 2, 1)(utils.set_zero_edge_features(graph, 1), 2)
    losses = cross_entropy(tf.boolean_mask(wanted, mask), found.nodes)
    shape = tf.shape(mask, out_type=tf.int64)
    return towers.Weighted(tf.scatter_nd(tf.where(mask), losses, shape), mask)
  return model


def schnet():
  net = load('SchNet/src', 'schnet.models.schnet')

  def model(batch, is_training):
    kinds, places, sizes, energy, forces = batch
    mask = tf.sequence_mask(sizes, ATOMS)
    others = ~tf.eye(ATOMS, dtype=tf.bool)
    pairs = tf.cast(tf.where(mask[:, :, None] & mask[:, None] & others), tf.int32)
    first = tf.gather(tf.cumsum(sizes, exclusive=True), pairs[:, 0])
    atoms, i, j = tf.boolean_mask(places, mask), first + pairs[:, 1], first + pairs[:, 2]
    molecules = tf.where(mask)[:, 0]
    found = net.SchNet(**MOLECULE)(
        tf.boolean_mask(kinds, mask), atoms, 0., i, j, j, molecules, i, tf.range(tf.size(i)), 1.)
    wrong = tf.boolean_mask(forces, mask) + tf.gradients(found, atoms)[0]
    return (energy - found[:, 0]) ** 2 + tf.segment_sum(tf.reduce_sum(wrong ** 2, 1), molecules)
  return model


def load_kgat():
  random = np.random.RandomState(4)
  links = Coordinates(random.rand(ENTITIES, ENTITIES) * (random.rand(ENTITIES, ENTITIES) < 0.1))
  return load('knowledge_graph_attention_network/Model', 'KGAT'), dict(
      n_users=40, n_items=20, n_entities=ENTITIES - 40, n_relations=RELATIONS, A_in=links,
      all_h_list=links.row, all_r_list=links.row % RELATIONS, all_t_list=links.col,
      all_v_list=links.data)


def kgat():
  net, graph = load_kgat()

  def model(batch, is_training):
    KGAT.batch_size = KGAT.batch_size_kg = tf.cast(tf.shape(batch[0])[0], tf.float32)
    made = net.KGAT(graph, None, KGAT)
    names = (made.users, made.pos_items, made.neg_items, made.h, made.r, made.pos_t, made.neg_t)
    drop = [0.3, 0.3] if is_training else [0., 0.]
    return towers.fed({**dict(zip(names, batch)), made.mess_dropout: drop},
                      made.loss[0] + made.loss2)
  return model


def load_impala():
  pytest.importorskip('sonnet')
  return load('scalable_agent', 'experiment')


def impala():
  net = load_impala()

  def model(batch, is_training):
    found = {}
    state, *outputs = batch
    env, acts = tf.nest.map_structure(
        lambda part: tf.transpose(part, [1, 0, *range(2, part.shape.ndims)]), outputs)
    with mock.patch('tensorflow.summary.scalar', found.__setitem__):
      net.build_learner(net.Agent(4), state, env, acts)
    return found['total_loss'] / tf.cast(tf.shape(acts.action)[1], tf.float32)
  return model


def ripple():
  net = load('RippleNet/src', 'model')

  def model(batch, is_training):
    made = net.RippleNet(RIPPLE, ITEMS, RELATIONS)
    names = (made.items, made.labels, *made.memories_h, *made.memories_r, *made.memories_t)
    rows = tf.cast(tf.shape(batch[0])[0], tf.float64)
    penalty = made.l2_loss * towers.all_sum(rows) / rows
    return towers.fed(dict(zip(names, batch)), made.base_loss + made.kge_loss + penalty)
  return model


def clicked():
  net = load('Unbiased-Learning-to-Rank/Unbiased_LTR', 'DLA.DLA_model')

  def model(batch, is_training):
    features, places, clicks = batch
    made = net.DLA(None, LISTED, features.shape[2].value, None, 'hidden_layer_sizes=[8,6]')
    first = tf.range(tf.shape(places)[0])[:, None] * LISTED
    seen = tf.where(places < 0, tf.ones_like(places) * tf.size(places), first + places)
    fed = {made.embeddings: tf.reshape(features, [-1, features.shape[2]])}
    fed.update(zip(made.encoder_inputs, tf.unstack(tf.cast(seen, tf.int64), axis=1)))
    fed.update(zip(made.target_clicks, tf.unstack(clicks, axis=1)))
    rank, exam, *clicks = map(towers.all_rows, (made.output, made.propensity, *made.target_clicks))
    return towers.fed(fed, made.loss_func(rank, [], clicks, tf.stop_gradient(exam))[0]
                      + made.loss_func(exam, [], clicks, tf.stop_gradient(rank))[0])
  return model
