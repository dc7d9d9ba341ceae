"""What is trained of each repository: its glue, arrays for it, and settings."""

import inspect
import re
from typing import Any, Callable, Dict, NamedTuple, Tuple

import numpy as np

from tests.gallery.field import language, pictures, signals, tables
from tests.gallery.field.language import CLASSES, LENGTH, WORDS
from towers.tensorflow_v1 import tf

NUM_EXAMPLES = 24


class Repository(NamedTuple):
  """A repository and what is known of it.

  Attributes:
    address: on GitHub.
    glue: returns the model function, whose attribute `init_from` gives first values, if any.
    arrays: returns the examples.
    needs: of its code, what other programs need too.
    batch_size: of all towers; the default leaves an uneven last batch.
    settings: of `towers.Program`.
    optimizer: returns the optimizer.
  """
  address: str
  glue: Callable[[], Any]
  arrays: Callable[[], Tuple[np.ndarray, ...]]
  needs: str
  batch_size: int = 9
  settings: Dict[str, Any] = {}
  optimizer: Callable[[], Any] = lambda: tf.train.AdamOptimizer(0.01)

  @property
  def lines(self) -> int:
    """The lines of its glue, without the three that only the gallery has: def, load, return."""
    source = inspect.getsource(self.glue)
    for helper in (signals.learning, signals.by_all, pictures.mean_of_all):
      if re.search(rf'\b{helper.__name__}\b', source):
        source += inspect.getsource(helper)
    return sum(bool(line.strip()) for line in source.split('\n')) - 3


def draw(kind: str, *shape: int, below: int = 2, examples: int = NUM_EXAMPLES) -> np.ndarray:
  """Returns an array of normal numbers, pixels from 0 to 1, or integers below a number."""
  random = np.random.RandomState(len(shape) + below)
  if kind == 'integers':
    return random.randint(0, below, size=(examples, *shape)).astype(np.int32)
  values = random.randn(examples, *shape) if kind == 'normal' else random.rand(examples, *shape)
  return values.astype(np.float32)


def words(length: int = LENGTH) -> np.ndarray:
  return draw('integers', length, below=WORDS)


def labels(below: int = CLASSES) -> np.ndarray:
  return draw('integers', below=below)


def stories() -> Tuple[np.ndarray, ...]:
  """Pairs of endings, each with places beside words and a mask; the last word is its class."""
  tokens = draw('integers', 2, LENGTH, below=WORDS - 1)
  tokens[:, :, -1] = WORDS - 1
  places = np.broadcast_to(np.arange(WORDS, WORDS + LENGTH), tokens.shape)
  mask = np.ones(tokens.shape, np.float32)
  mask[::2, :, 4:] = 0
  return np.stack([tokens, places], -1).astype(np.int32), mask, labels(2)


def sentences() -> Tuple[np.ndarray, ...]:
  """Two languages, of which the second is filled up by 0; and names."""
  target = draw('integers', LENGTH, below=WORDS - 1) + 1
  target[::3, 3:] = 0
  return words() * 0 + draw('integers', LENGTH, below=WORDS - 1) + 1, target, np.array(
      ['a'] * NUM_EXAMPLES)


def speech() -> Tuple[np.ndarray, ...]:
  lengths = 6 + draw('integers', below=4)
  return draw('normal', 9, 5), lengths, draw('integers', 3, below=6)


def sentences_of_letters() -> Tuple[np.ndarray, ...]:
  """Words, how many there are, their letters and how many, and tags."""
  lengths, word_lengths = 1 + draw('integers', below=LENGTH), 1 + draw('integers', LENGTH, below=4)
  mask = np.arange(LENGTH) < lengths[:, None]
  return (words() * mask, lengths, draw('integers', LENGTH, 4, below=WORDS) * mask[..., None],
          word_lengths * mask, draw('integers', LENGTH, below=CLASSES) * mask)


def masked_words() -> Tuple[Dict[str, np.ndarray]]:
  mask = np.int32(np.arange(LENGTH) < 2 + draw('integers', below=LENGTH - 1)[:, None])
  return {'input_ids': words() * mask, 'input_mask': mask, 'segment_ids': mask * 0},


def positions() -> Tuple[np.ndarray, Dict[str, np.ndarray]]:
  moves = np.eye(362, dtype=np.float32)[draw('integers', below=362)]
  return draw('uniform', 19, 19, 17), {'pi_tensor': moves, 'value_tensor': draw('normal')}


def utterances() -> Tuple[np.ndarray, ...]:
  """Letters, how many, frames, which is the last one, and spectra."""
  return (draw('integers', 5, below=WORDS), 2 + draw('integers', below=4), draw('normal', 6, 4),
          np.float32(np.arange(6) >= 3 + draw('integers', below=4)[:, None]), draw('normal', 6, 6))


def boxes() -> Tuple[np.ndarray, ...]:
  """Images, what is in each of 3 grids, and the boxes of each."""
  grids = [draw('uniform', size, size, 3, 7, below=2 + size) for size in (4, 2, 1)]
  for grid in grids:
    grid[..., 4] = grid[..., 4] > 0.5
    grid[..., :4] *= 32
  return (draw('uniform', 32, 32, 3), *grids,
          *(32 * draw('uniform', 5, 4, below=number) for number in (2, 3, 4)))


def translations() -> Tuple[np.ndarray, ...]:
  """Words, two rows of them to predict, and how many each sentence has."""
  target = draw('integers', 6, below=5)
  return (draw('integers', 7, below=4), target, np.roll(target, -1, 1),
          2 + draw('integers', below=5), 2 + draw('integers', below=4))


def anchors() -> Tuple[Any, ...]:
  """Images, and by grid the classes, the places and the scores of boxes, few of which are none."""
  shapes = [(size, size, number) for size, number in (
      (33, 4), (17, 6), (9, 6), (5, 6), (3, 4), (1, 4))]
  kinds = tuple(np.maximum(draw('integers', *shape, below=100) - 97, 0).astype(np.int64)
                for shape in shapes)
  return (draw('normal', 264, 264, 3), kinds, tuple(draw('normal', *shape, 4) for shape in shapes),
          tuple(np.float32(kind > 0) for kind in kinds))


def plays() -> Tuple[np.ndarray, ...]:
  """Observations, actions, advantages, returns, and of an older policy likelihoods and values."""
  return (draw('normal', 5), draw('integers', below=3), draw('normal'), draw('normal', below=3),
          draw('uniform', below=4), draw('normal', below=5))


def articles() -> Tuple[Dict[str, np.ndarray]]:
  """Words, some of which are not in the vocabulary, and of their summaries."""
  lengths = 1 + draw('integers', below=LENGTH)
  mask = np.float32(np.arange(LENGTH) < lengths[:, None])
  extended = draw('integers', LENGTH, below=WORDS + 2)
  target = draw('integers', 4, below=WORDS)
  target[:, 0] = extended[:, 0]
  return {'enc_batch': extended % WORDS, 'enc_lens': lengths, 'enc_padding_mask': mask,
          'enc_batch_extend_vocab': extended, 'target_batch': target,
          'dec_batch': np.roll(target, 1, 1) % WORDS,
          'dec_padding_mask': np.float32(np.arange(4) < 2 + draw('integers', below=3)[:, None])},


def graphs() -> Tuple[np.ndarray, ...]:
  """Features of nodes, biases that keep those without an edge apart, kinds, and which have one."""
  edges = draw('integers', 7, 7) + np.eye(7, dtype=np.int32)
  kinds = np.eye(tables.CLASSES, dtype=np.float32)[draw('integers', 7, below=tables.CLASSES)]
  return (draw('normal', 7, 5), np.float32(-1e9 * (edges == 0)), kinds,
          np.float32(draw('integers', 7, below=3) > 0))


def questions() -> Tuple[np.ndarray, ...]:
  """Texts, questions, the letters of both, and where the answers begin and end."""
  parts = []
  for length, longest in ((6, 8), (4, 6)):
    mask = np.arange(longest) < longest - draw('integers', below=length)[:, None]
    tokens = (1 + draw('integers', longest, below=WORDS - 1)) * mask
    parts.append((np.int32(tokens), np.int32((1 + draw(
        'integers', longest, 4, below=WORDS - 1)) * mask[..., None])))
  [(text, letters), (question, others)] = parts
  ends = [np.eye(8, dtype=np.float32)[draw('integers', below=number)] for number in (2, 3)]
  return (text, question, letters, others, *ends)


def spelled_questions() -> Tuple[np.ndarray, ...]:
  """Questions, whose words have five letters."""
  text, question, *letters, starts, ends = questions()
  longer = [np.concatenate([each, each[..., 1:2]], 2) for each in letters]
  return (text, question, *longer, starts, ends)


def lines() -> Tuple[Any, ...]:
  """Files of images; of words a first sign, letters and a last one; and what of them counts."""
  with tf.Graph().as_default(), tf.Session() as session:
    pixels = np.uint8(255 * draw('uniform', 32, 32, 1))
    files = session.run([tf.image.encode_png(each) for each in pixels])
  lengths = 3 + draw('integers', below=3)[:, None]
  letters = np.concatenate([np.ones([NUM_EXAMPLES, 1]), 3 + draw('integers', 5, below=30)], 1)
  return (np.array(files, object), np.int32(letters * (np.arange(6) < lengths)),
          np.float32(np.arange(6) < lengths - 1))


def visits() -> Tuple[np.ndarray, ...]:
  """Users, what they bought, what they bought next, and what they did not."""
  items = draw('integers', tables.VISITS + 1, below=tables.ITEMS) + 1
  items[::3, :3] = 0
  return (np.arange(NUM_EXAMPLES, dtype=np.int32), items[:, :-1],
          items[:, 1:] * (items[:, :-1] > 0),
          draw('integers', tables.VISITS, below=tables.ITEMS - 1) + 1)


def plates() -> Tuple[np.ndarray, ...]:
  """Images of words, and their letters, the last of which some do not have."""
  letters = draw('integers', 3, below=5)
  letters[::4, 2] = -1
  return draw('normal', 32, 32, 3), letters


def texts() -> Tuple[np.ndarray, ...]:
  """Images, where text is, the sides and angle of its boxes, and what counts."""
  return (255 * draw('uniform', 64, 64, 3), np.float32(draw('integers', 16, 16, 1)),
          draw('uniform', 16, 16, 5) * 9, np.float32(draw('integers', 16, 16, 1, below=4) > 0))


def faces() -> Tuple[np.ndarray, ...]:
  """Images, what they show, and what else they could show."""
  return (draw('uniform', 16, 16, 3) * 2 - 1, np.float32(draw('integers', 3)),
          np.float32(draw('integers', 3, 3)))


def spellings() -> Tuple[Dict[str, np.ndarray], ...]:
  """Sounds and their letters, the ends filled up."""
  lengths = 1 + draw('integers', below=LENGTH)
  letters = draw('integers', LENGTH, below=4) + 3
  letters[np.arange(LENGTH) >= lengths[:, None]] = 2
  return ({'encoder_inputs': draw('normal', 9, 5), 'source_sequence_length': 3 + lengths},
          {'targets_inputs': np.roll(letters, 1, 1), 'targets_outputs': letters,
           'target_sequence_length': lengths})


def moves() -> Tuple[np.ndarray, ...]:
  """Observations, actions, what is observed then, rewards, and whether it ends."""
  return (draw('normal', 5), draw('uniform', 2) * 2 - 1, draw('normal', 5, below=3),
          draw('normal'), np.float32(draw('integers', below=4) == 0))


def tasks() -> Tuple[np.ndarray, ...]:
  """Of each task a picture per class to learn from, and one to measure."""
  kinds = np.stack([np.eye(pictures.TASKS, dtype=np.float32)] * NUM_EXAMPLES)
  return (draw('uniform', pictures.TASKS, 64), draw('uniform', pictures.TASKS, 64, below=3), kinds,
          kinds[:, ::-1])


def strokes() -> Tuple[np.ndarray, ...]:
  """Moves of a pen, whether it draws, is lifted or done, and how many there are."""
  lengths = 3 + draw('integers', below=pictures.POINTS - 3)
  pens = np.eye(3, dtype=np.float32)[draw('integers', pictures.POINTS + 1)]
  pens[np.arange(pictures.POINTS + 1) > lengths[:, None]] = 0, 0, 1
  return np.concatenate([draw('normal', pictures.POINTS + 1, 2), pens], 2), lengths


def detections() -> Tuple[Any, ...]:
  """Images, and of each cell and anchor what darkflow feeds its losses."""
  cells = draw('integers', 64, 1, below=4) == 0
  corners = draw('uniform', 64, 1, 2, below=4)
  wanted = dict(
      probs=draw('uniform', 64, 2, 2), confs=np.repeat(cells, 2, 2), areas=draw('uniform', 64, 2),
      coord=draw('uniform', 64, 2, 4), proid=draw('uniform', 64, 2, 2),
      upleft=np.repeat(corners, 2, 2), botright=np.repeat(corners + 0.5, 2, 2))
  return draw('uniform', 16, 16, 3), {
      name: value.astype(np.float32) for name, value in wanted.items()}


def padded_pairs() -> Tuple[np.ndarray, ...]:
  """Sentences and their translations, which end in zeros."""
  return tuple(
      (1 + draw('integers', length, below=WORDS - 1)) * np.int32(
          np.arange(length) < 1 + draw('integers', below=length)[:, None]) for length in (6, 5))


def games() -> Tuple[np.ndarray, ...]:
  """Screens, actions, rewards, the next screens, and whether it ends."""
  return (draw('uniform', 36, 36, 4), draw('integers', below=3).astype(np.int64), draw('normal'),
          draw('uniform', 36, 36, 4, below=3), np.float32(draw('integers', below=4) == 0))


def both_ways() -> Tuple[Dict[str, np.ndarray]]:
  """Letters of words and the words that are next, forward and backward."""
  letters, tokens = draw('integers', 5, 6, below=261), draw('integers', 5, below=20)
  return {'tokens_characters': letters[:, :-1], 'tokens_characters_reverse': letters[:, :0:-1],
          'next_token_id': tokens[:, 1:], 'next_token_id_reverse': tokens[:, -2::-1]},


def traffic() -> Tuple[np.ndarray, ...]:
  """What sensors on roads see, and see then, without a number where they fail."""
  then = draw('normal', 3, 5, 2)
  then[::2, :, ::3] = 0
  return draw('normal', 3, 5, 2, below=3), then


def clicks() -> Tuple[Dict[str, np.ndarray]]:
  """Users, what is offered, what they saw before and what not, and whether they click."""
  lengths = 1 + draw('integers', below=5)
  mask = np.float32(np.arange(5) < lengths[:, None])
  return {'uid_batch_ph': np.arange(NUM_EXAMPLES, dtype=np.int32),
          'mid_batch_ph': draw('integers', below=20), 'cat_batch_ph': draw('integers', below=5),
          'mid_his_batch_ph': np.int32(draw('integers', 5, below=20) * mask),
          'cat_his_batch_ph': np.int32(draw('integers', 5, below=5) * mask),
          'mask': mask, 'seq_len_ph': lengths,
          'target_ph': np.eye(2, dtype=np.float32)[draw('integers')],
          'noclk_mid_batch_ph': draw('integers', 5, 3, below=20),
          'noclk_cat_batch_ph': draw('integers', 5, 3, below=5)},


def brains() -> Tuple[Dict[str, np.ndarray], ...]:
  """A slice of a head by three kinds of scan, and its tissues."""
  return {'x': draw('normal', 1, 128, 128, 3)}, {'y': draw('integers', 1, 128, 128, below=9)}


def portraits() -> Tuple[np.ndarray, ...]:
  """Images, and of which kind each is; all batches are multiples of four."""
  return (draw('normal', 3, 16, 16, examples=20),
          np.eye(2, dtype=np.float32)[draw('integers', examples=20)])


def masked_sentences() -> Tuple[np.ndarray, ...]:
  """Words and which of them count, of two languages."""
  parts = []
  for size in (6, 5):
    mask = np.float32(np.arange(size) < 1 + draw('integers', below=size)[:, None])
    parts += [np.int32(draw('integers', size, below=WORDS) * mask), mask]
  return tuple(parts)


def histories() -> Tuple[Tuple[np.ndarray, ...], np.ndarray]:
  """An item, who sees it, how old and after which others, filled up by 0; and whether he buys."""
  seen = draw('integers', 5, below=11) + 1
  seen[::2, 3:] = 0
  return ((draw('integers', below=11) + 1, draw('integers', below=9), draw('normal', 2), seen),
          np.float32(draw('integers', 1)))


def episodes() -> Tuple[np.ndarray, ...]:
  """Four screens, three actions, a state, where an episode begins, and what an agent made of it."""
  return (draw('integers', 4, *tables.SCREEN, 4, below=256), draw('integers', 3, below=3),
          draw('normal', 4), np.float32(draw('integers', 3, below=4) == 0), draw('normal', 3),
          draw('normal', 3, below=3), draw('normal', 3, below=4), 1 + 0.1 * draw('uniform', 3))


def people() -> Tuple[np.ndarray, ...]:
  """Images, where joints are, which places count, how far off they are, and where that counts."""
  joints = np.float32(draw('integers', 8, 8, 3, below=5) == 0)
  return (255 * draw('uniform', 64, 64, 3), joints,
          np.float32(draw('integers', 8, 8, 3, below=3) > 0), draw('normal', 8, 8, 6),
          np.repeat(joints, 2, -1))


def scenes() -> Tuple[Dict[str, np.ndarray], ...]:
  """Images, the boxes in them with their kinds, some of which are none, and by grid the scores and
  places of anchors."""
  corners, kinds = 40 * draw('uniform', 4, 2), np.float32(1 + draw('integers', 4, below=3))
  boxes = np.concatenate([corners, corners + 12 + 12 * draw('uniform', 4, 2, below=3)], -1)
  boxes[::2, 3] = kinds[::2, 3] = -1
  found = dict(gt_boxes=boxes, gt_classes=kinds)
  for level in range(2, 7):
    size = 64 >> level
    counts = np.repeat(draw('integers', size, size, 3), 4, -1).astype(np.float32)
    found[f'score_targets_{level}'] = draw('integers', size, size, 3, below=3) - 1
    found[f'box_targets_{level}'] = draw('normal', size, size, 12) * counts
  return dict(images=draw('normal', 64, 64, 3),
              image_info=np.float32([[64, 64, 1, 64, 64]] * NUM_EXAMPLES)), found


def described_pictures() -> Tuple[np.ndarray, ...]:
  """Features of places in a picture, and words, filled up by 0."""
  mask = np.arange(6) < 2 + draw('integers', below=5)[:, None]
  return draw('normal', 6, 8), np.int32((1 + draw('integers', 6, below=WORDS - 1)) * mask)


def frames() -> Tuple[Dict[str, np.ndarray]]:
  """Screens, actions, rewards, the next screens, and whether it ends."""
  screens = [np.uint8(draw('integers', *tables.SCREEN, 4, below=number)) for number in (256, 255)]
  return {'states': screens[0], 'actions': draw('integers', below=3), 'rewards': draw('normal'),
          'next_states': screens[1], 'terminals': np.uint8(draw('integers', below=4) == 0)},


def molecules() -> Tuple[np.ndarray, ...]:
  """Kinds and places of atoms, how many there are, and the energy and forces of each molecule."""
  return (draw('integers', tables.ATOMS, below=6), draw('normal', tables.ATOMS, 3),
          2 + draw('integers', below=tables.ATOMS - 1), draw('normal'),
          draw('normal', tables.ATOMS, 3, below=3))


def facts() -> Tuple[np.ndarray, ...]:
  """Users, what they bought and not, and of a graph heads, relations, tails and others."""
  return tuple(draw('integers', below=number) for number in (
      40, 20, 19, tables.ENTITIES, tables.RELATIONS, tables.ENTITIES - 1, tables.ENTITIES - 2))


def films() -> Tuple[Dict[str, np.ndarray]]:
  """Pictures, and what was done before each and gained."""
  return {'image': draw('uniform', 5, 64, 64, 3), 'action': draw('normal', 5, 2),
          'reward': draw('normal', 5)},


def clouds() -> Tuple[np.ndarray, ...]:
  """Points, how each cloud is turned, and what it is."""
  turned = np.eye(3, dtype=np.float32) + 0.1 * draw('normal', 3, 3)
  return draw('normal', 12, 3), turned, labels(5)


def half_labeled() -> Tuple[np.ndarray, ...]:
  kinds = labels(10)
  kinds[::3] = -1
  return draw('normal', 32, 32, 3), kinds


def levels() -> Tuple[Any, ...]:
  """States, what is seen of levels and gained, and what an older agent did and thought."""
  net, length = tables.load_impala(), 4
  texts = np.array(['go left', 'run', '', 'find the door'], object)
  env = net.environments.StepOutput(
      draw('normal', length), net.environments.StepOutputInfo(
          draw('normal', length, below=3), draw('integers', length, below=9)),
      draw('integers', length, below=4) == 0, (
          np.uint8(draw('integers', length, 16, 16, 3, below=256)),
          texts[draw('integers', length, below=4)]))
  state = tf.nn.rnn_cell.LSTMStateTuple(
      0.1 * draw('normal', 256), 0.1 * draw('normal', 256, below=3))
  return state, env, net.AgentOutput(draw('integers', length, below=4), draw('normal', length, 4),
                                     draw('normal', length, below=5))


def bonds() -> Tuple[np.ndarray, ...]:
  """Bonds between atoms, their kinds, noise, and what real and made molecules are worth."""
  edges = np.triu(draw('integers', 5, 5, below=4), 1)
  return ((edges + edges.transpose(0, 2, 1)).astype(np.int64),
          draw('integers', 5, below=3).astype(np.int64), draw('normal', 6), draw('uniform', 1),
          draw('uniform', 1, below=3))


def wishes() -> Tuple[np.ndarray, ...]:
  """Items, whether they are bought, and for two hops heads, relations and tails around users."""
  return (draw('integers', below=tables.ITEMS), draw('integers').astype(np.float64), *(
      draw('integers', tables.VISITS, below=number) for number in (12, 11, 3, 2, 10, 9)))


def pairs() -> Tuple[np.ndarray, ...]:
  """What is followed, and where it is looked for."""
  return draw('uniform', 87, 87, 3) * 255, draw('uniform', 151, 151, 3) * 255


def streets() -> Tuple[np.ndarray, ...]:
  """Images, and what each pixel shows, which for some is not known."""
  kinds = draw('integers', 128, 128, 1, below=6)
  kinds[kinds == 5] = 255
  kinds[::2, :100] = 255
  return draw('normal', 128, 128, 3) * 50, kinds


def mixtures() -> Tuple[np.ndarray, ...]:
  """Spectra of two voices at once, of each alone, how long they are, and whose they are."""
  lengths = 4 + draw('integers', below=5)
  mask = np.float32(np.arange(8) < lengths[:, None])[..., None]
  voices = draw('uniform', 8, 10) * mask
  return voices[..., :5] + voices[..., 5:], voices, lengths, labels(2)


def searches() -> Tuple[np.ndarray, ...]:
  """What is known of documents, their order, some of which are none, and which are clicked."""
  places = np.argsort(draw('uniform', tables.LISTED), 1).astype(np.int32)
  places[::3, 3:] = -1
  clicks = np.float32(draw('integers', tables.LISTED, below=3) == 0) * (places >= 0)
  clicks[:, 0] = 1
  return draw('normal', tables.LISTED, 5), places, np.float32(clicks)


def smooth_adam() -> Any:
  """Adam for models with biases that change no loss, as those before a batch normalisation.

  Their gradient is rounding, by which Adam itself moves them as far as any other.
  """
  return tf.train.AdamOptimizer(0.01, epsilon=1e-3)


SYNC = {'batch_norm': 'sync'}
STATIC = {'last_batch': 'drop'}
REPOSITORIES: Dict[str, Repository] = {
    'gpt_2': Repository('openai/gpt-2', language.gpt_2, lambda: (words(),), 'nothing'),
    'finetune': Repository(
        'openai/finetune-transformer-lm', language.finetune, stories, 'dropout of weights, Defun',
        optimizer=smooth_adam),
    'bert': Repository(
        'google-research/bert', language.bert, lambda: (words(), labels()),
        '`if is_training:`, an optimizer of its own', optimizer=language.bert_optimizer),
    'transformer_xl': Repository(
        'kimiyoung/transformer-xl', language.transformer_xl, lambda: (words(),),
        'draws of `[to, from, batch, heads]`'),
    'xlnet': Repository(
        'zihangdai/xlnet', language.xlnet,
        lambda: ({'input_ids': words(), 'segment_ids': words() % 2, 'label_ids': labels(),
                  'input_mask': np.float32(words() > 8) * 0},), 'time before the batch'),
    'translator': Repository('Kyubyong/transformer', language.translator, sentences,
                             'a mean by a mask', optimizer=smooth_adam),
    'text_cnn': Repository('dennybritz/cnn-text-classification-tf', language.text_cnn,
                           lambda: (words(), labels()), 'placeholders, `tf.device`'),
    'char_rnn': Repository(
        'sherjilozair/char-rnn-tensorflow', language.char_rnn, lambda: (words(),),
        'placeholders, a batch size as a number, an optimizer inside', 6, STATIC),
    'electra': Repository('google-research/electra', language.electra, masked_words,
                          "a mean by a mask, categorical draws",
                          optimizer=language.electra_optimizer),
    'tagger': Repository('guillaumegenthial/sequence_tagging', language.tagger,
                         sentences_of_letters, 'a session inside, a CRF'),
    'deepspeech': Repository('mozilla/DeepSpeech', signals.deepspeech, speech,
                             'draws of `[time * batch, n]`, `tf.device`'),
    'wavenet': Repository(
        'ibab/tensorflow-wavenet', signals.wavenet,
        lambda: (draw('uniform', 24) * 2 - 1, labels(4)), "`tf.Variable(value, 'name')`"),
    'glow': Repository(
        'openai/glow', signals.glow,
        lambda: (draw('integers', 8, 8, 3, below=256).astype(np.uint8), labels()),
        'Horovod, a session inside, first values from data', optimizer=smooth_adam),
    'cifar10': Repository(
        'tensorflow/models cifar10', signals.cifar10,
        lambda: (draw('normal', 24, 24, 3), labels(10)), 'a batch size as a number', 6, STATIC,
        lambda: tf.train.GradientDescentOptimizer(0.1)),
    'ptb': Repository('tensorflow/models ptb_word_lm', language.ptb,
                      lambda: (words(9),), 'a batch size as a number', 6, STATIC),
    'pixel_cnn': Repository(
        'openai/pixel-cnn', signals.pixel_cnn, lambda: (draw('uniform', 8, 8, 3) * 2 - 1,),
        'a batch size as a number, first values from data, a template', 6, STATIC,
        smooth_adam),
    'tacotron': Repository('Rayhane-mamah/Tacotron-2', signals.tacotron, utterances,
                           'a py_func, draws in a loop, batch norm of tf.layers', settings=SYNC,
                           optimizer=smooth_adam),
    'yolo': Repository('YunYang1994/tensorflow-yolov3', signals.yolo, boxes,
                       'placeholders, sessions, two optimizers and averages inside', settings=SYNC,
                       optimizer=lambda: tf.train.GradientDescentOptimizer(1e-5)),
    'nmt': Repository('tensorflow/nmt', language.nmt, translations,
                      '`DeviceWrapper`, an optimizer inside'),
    'deepfm': Repository(
        'ChenglongChen/tensorflow-DeepFM', tables.deepfm,
        lambda: (draw('integers', 4, below=tables.FEATURES), draw('normal', 4),
                 np.float32(draw('integers', 1))),
        'a graph of its own, batch norm of contrib', settings=SYNC,
        optimizer=smooth_adam),
    'graphsage': Repository(
        'williamleif/GraphSAGE', tables.graphsage,
        lambda: (draw('integers', below=tables.NODES),
                 np.eye(tables.CLASSES, dtype=np.float32)[labels(tables.CLASSES)]),
        'names that count, a shuffle'),
    'ppo': Repository('openai/baselines ppo2', signals.ppo, plays,
                      'placeholders, a session'),
    'ssd': Repository(
        'balancap/SSD-Tensorflow', signals.ssd, anchors,
        'the hardest negatives of a batch', 6, STATIC,
        lambda: tf.train.GradientDescentOptimizer(1e-5)),
    'pointnet': Repository(
        'charlesq34/pointnet', signals.pointnet, lambda: (draw('normal', 8, 3), labels(40)),
        'averages of moments in `tf.cond`, a batch size as a number', 6, dict(SYNC, **STATIC),
        lambda: tf.train.GradientDescentOptimizer(1e-4)),
    'capsules': Repository(
        'naturomics/CapsNet-Tensorflow', signals.capsules,
        lambda: (draw('uniform', 17, 17, 1), labels()),
        'a graph of its own, a batch size as a number', 6, STATIC),
    'summaries': Repository(
        'abisee/pointer-generator', language.summaries, articles,
        'placeholders, `tf.device`, a batch size as a number', 6, STATIC,
        lambda: tf.train.AdagradOptimizer(0.15, initial_accumulator_value=0.1)),
    'gat': Repository('PetarV-/GAT', tables.gat, graphs, 'draws of `[batch, nodes, nodes]`'),
    'sasrec': Repository('kang205/SASRec', tables.sasrec, visits,
                         'placeholders, a mean by a mask, an optimizer inside',
                         optimizer=smooth_adam),
    'reader': Repository(
        'HKUST-KnowComp/R-Net', language.reader, questions,
        'texts cut at the longest, a switch in a variable, a batch size as a number', 6,
        dict(STATIC, clip_norm=5.), lambda: tf.train.AdadeltaOptimizer(0.5, epsilon=1e-6)),
    'crnn': Repository(
        'MaybeShewill-CV/CRNN_Tensorflow', signals.crnn, plates,
        'a batch size as a number, batch norm of tf.layers', 6, dict(SYNC, **STATIC),
        lambda: tf.train.MomentumOptimizer(0.01, 0.9)),
    'monodepth': Repository(
        'mrharicot/monodepth', signals.monodepth,
        lambda: (draw('uniform', 128, 128, 3), draw('uniform', 128, 128, 3, below=3)),
        'gathers of pixels', optimizer=smooth_adam),
    'srgan': Repository(
        'brade31919/SRGAN-tensorflow', signals.srgan,
        lambda: (draw('uniform', 4, 4, 3), draw('uniform', 16, 16, 3) * 2 - 1),
        'two optimizers inside, batch norm of slim', settings=SYNC,
        optimizer=lambda: tf.train.AdamOptimizer(1e-4)),
    'memory': Repository(
        'domluna/memn2n', language.memory,
        lambda: (draw('integers', 5, LENGTH, below=WORDS), words(), labels(WORDS)),
        'placeholders, a session inside, noise of gradients', optimizer=language.memory_optimizer),
    'east': Repository('argman/EAST', signals.east, texts,
                       'a loss of the whole batch, batch norm of slim', settings=SYNC,
                       optimizer=lambda: tf.train.GradientDescentOptimizer(1e-4)),
    'stargan': Repository('taki0112/StarGAN-Tensorflow', signals.stargan, faces,
                          'a shuffle of the batch, penalties on gradients',
                          optimizer=lambda: tf.train.AdamOptimizer(1e-4)),
    'speller': Repository('WindQAQ/listen-attend-and-spell', signals.speller, spellings,
                          "Estimator's `model_fn`, a mean by a mask, draws in a loop"),
    'sac': Repository('openai/spinningup sac', signals.sac, moves,
                      'three losses, a network that follows another'),
    'maml': Repository(
        'cbfinn/maml', pictures.maml, tasks,
        'second derivatives in `map_fn`, updates in it, a batch size as a number', 6, STATIC,
        lambda: tf.train.GradientDescentOptimizer(0.01)),
    'sketch': Repository(
        'magenta/magenta sketch_rnn', pictures.sketch, strokes,
        'placeholders, a variable that is fed, a batch size as a number', 6, STATIC),
    'unet': Repository('jakeret/tf_unet', pictures.unet,
                       lambda: (draw('uniform', 24, 24, 1), draw('uniform', 8, 8, 2)),
                       'placeholders, a graph of its own'),
    'darkflow': Repository('thtrieu/darkflow', pictures.darkflow, detections,
                           'a graph and a session of its own, batch norm of slim in place',
                           settings=SYNC),
    'style': Repository(
        'lengstrom/fast-style-transfer', pictures.style,
        lambda: (255 * draw('uniform', 16, 16, 3),), 'a batch size as a number', 6, STATIC,
        lambda: tf.train.AdamOptimizer(1e-4)),
    'minigo': Repository('tensorflow/minigo', signals.minigo, positions,
                         "Estimator's `model_fn`, batch norm of tf.layers", settings=SYNC,
                         optimizer=lambda: tf.train.GradientDescentOptimizer(1e-4)),
    'facenet': Repository('davidsandberg/facenet', signals.facenet,
                          lambda: (draw('normal', 32, 32, 3), labels()),
                          'batch norm of slim in place', settings=SYNC,
                          optimizer=lambda: tf.train.GradientDescentOptimizer(1e-5)),
    'dcgan': Repository(
        'carpedm20/DCGAN-tensorflow', signals.dcgan,
        lambda: (draw('normal', 16, 16, 3), draw('normal', 4)),
        'placeholders, two losses, batch norm in place', 6, dict(SYNC, **STATIC),
        lambda: tf.train.GradientDescentOptimizer(0.01)),
    'pix2pix': Repository(
        'affinelayer/pix2pix-tensorflow', signals.pix2pix,
        lambda: (draw('uniform', 256, 256, 3, examples=8),
                 draw('uniform', 256, 256, 3, examples=8)),
        'two optimizers inside, batch norm of tf.layers', 3, SYNC, smooth_adam),
    'gcn': Repository(
        'tkipf/gcn', tables.gcn, lambda: (np.arange(NUM_EXAMPLES, dtype=np.int32),),
        'draws of the whole graph'),
    'dqn': Repository('devsisters/DQN-tensorflow', tables.dqn, games,
                      'placeholders, a session, a network that follows another',
                      optimizer=smooth_adam),
    'simclr': Repository(
        'google-research/simclr', pictures.simclr,
        lambda: (draw('uniform', 32, 32, 6), labels()), 'negatives of the batch', settings=SYNC,
        optimizer=lambda: tf.train.GradientDescentOptimizer(1e-5)),
    'tensor2tensor': Repository('tensorflow/tensor2tensor', language.tensor2tensor, padded_pairs,
                                'draws of what is no padding', optimizer=smooth_adam),
    'bilm': Repository('allenai/bilm-tf', language.bilm, both_ways, 'candidate samplers', 6, STATIC,
                       language.bilm_optimizer),
    'dcrnn': Repository(
        'liyaguang/DCRNN', tables.dcrnn, traffic, 'one draw for all rows', 6,
        dict(STATIC, clip_norm=5.), lambda: tf.train.AdamOptimizer(0.01, epsilon=1e-3)),
    'dien': Repository('mouna99/dien', tables.dien, clicks, 'moments of its own',
                       optimizer=smooth_adam),
    'dltk': Repository('DLTK/DLTK', pictures.dltk, brains, "Estimator's `model_fn`", settings=SYNC,
                       optimizer=lambda: tf.train.GradientDescentOptimizer(1e-3)),
    'waveglow': Repository(
        'weixsong/WaveGlow', signals.waveglow,
        lambda: (draw('normal', 64, 1), draw('normal', 8, 4)), 'first weights by numpy',
        optimizer=lambda: tf.train.AdamOptimizer(0.001)),
    'c3d': Repository(
        'hx173149/C3D-tensorflow', pictures.c3d,
        lambda: (draw('normal', 16, 32, 32, 3), labels()), 'penalties in its own collection', 6,
        dict(STATIC, average_weights=0.99), lambda: tf.train.AdamOptimizer(0.001)),
    'qanet': Repository(
        'NLPLearn/QANet', language.qanet, spelled_questions, 'averages that the loss waits for', 6,
        dict(STATIC, clip_norm=5.), smooth_adam),
    'ocr': Repository(
        'emedvedev/attention-ocr', pictures.ocr, lines, 'fed tensors, files in `map_fn`',
        settings=dict(SYNC, clip_norm=5.),
        optimizer=lambda: tf.train.GradientDescentOptimizer(0.01)),
    'pggan': Repository(
        'tkarras/progressive_growing_of_gans', pictures.pggan, portraits,
        'a penalty on gradients, networks made before', 8,
        optimizer=lambda: tf.train.AdamOptimizer(0.001, beta1=0., beta2=0.99, epsilon=1e-3)),
    'nematus': Repository('EdinburghNLP/nematus', language.nematus, masked_sentences,
                          'time-major'),
    'deepctr': Repository('shenweichen/DeepCTR', tables.deepctr, histories, 'Keras', settings=SYNC,
                          optimizer=smooth_adam),
    'curiosity': Repository(
        'openai/random-network-distillation', tables.curiosity, episodes,
        'a session, MPI, first weights by numpy', optimizer=lambda: tf.train.AdamOptimizer(0.001)),
    'pose': Repository('eldar/pose-tensorflow', pictures.pose, people, 'means by masks',
                       optimizer=lambda: tf.train.GradientDescentOptimizer(1e-7)),
    'rcnn': Repository(
        'tensorflow/tpu mask_rcnn', pictures.rcnn, scenes, 'draws by image, means by masks', 6,
        STATIC, lambda: tf.train.GradientDescentOptimizer(1e-4)),
    'graph_nets': Repository(
        'deepmind/graph_nets', tables.graph_nets,
        lambda: (draw('normal', 5, 3), 2 + draw('integers', below=4),
                 draw('integers', 5), draw('normal', 2)), 'Sonnet'),
    'captions': Repository('yunjey/show-attend-and-tell', pictures.captions, described_pictures,
                           'batch norm of contrib in place', settings=SYNC, optimizer=smooth_adam),
    'voices': Repository(
        'Janghyun1230/Speaker_Verification', signals.voices, lambda: (draw('normal', 3, 7, 5),),
        'a loss of the whole batch', 6, STATIC, signals.voices_optimizer),
    'quantiles': Repository(
        'google/dopamine', tables.quantiles, frames, 'draws of `[n * batch]`', 6, STATIC,
        lambda: tf.train.AdamOptimizer(0.0001, epsilon=0.0003125)),
    'mixmatch': Repository(
        'google-research/mixmatch', pictures.mixmatch,
        lambda: (draw('normal', 16, 16, 3), draw('normal', 2, 16, 16, 3), labels()),
        'rows that are mixed', 6, dict(SYNC, **STATIC), smooth_adam),
    'schnet': Repository('atomistic-machine-learning/SchNet', tables.schnet, molecules,
                         'a gradient in the loss'),
    'kgat': Repository('xiangwang1223/knowledge_graph_attention_network', tables.kgat, facts,
                       'placeholders, a loss of shape [1]', optimizer=smooth_adam),
    'musegan': Repository(
        'salu133445/musegan', pictures.musegan,
        lambda: (2 * np.float32(draw('integers', 4, 48, 84, 2)) - 1,), 'two optimizers inside',
        settings=SYNC, optimizer=lambda: tf.train.GradientDescentOptimizer(1e-3)),
    'flow': Repository(
        'aravindsrinivas/flowpp', pictures.flow,
        lambda: (np.float32(draw('integers', 8, 8, 3, below=256)),),
        'first values that later reads see', 6, dict(STATIC, clip_norm=1., average_weights=0.99),
        lambda: tf.train.GradientDescentOptimizer(0.01)),
    'planet': Repository(
        'google-research/planet', pictures.planet, films, 'draws of `[batch * time * n]`',
        settings=dict(clip_norm=100.), optimizer=smooth_adam),
    'pointcnn': Repository('yangyanli/PointCNN', pictures.pointcnn, clouds,
                           'penalties that are scaled', settings=SYNC, optimizer=smooth_adam),
    'teacher': Repository(
        'CuriousAI/mean-teacher', pictures.teacher, half_labeled,
        'its own step, initializers that need a batch, means of it', optimizer=smooth_adam),
    'impala': Repository(
        'deepmind/scalable_agent', tables.impala, levels, 'a sum over the batch, texts',
        optimizer=lambda: tf.train.RMSPropOptimizer(0.00048, 0.99, 0., 0.1)),
    'molgan': Repository('nicola-decao/MolGAN', pictures.molgan, bonds, 'three optimizers inside',
                         optimizer=lambda: tf.train.GradientDescentOptimizer(1e-3)),
    'ripple': Repository('hwwang55/RippleNet', tables.ripple, wishes,
                         'float64, sums over the batch'),
    'factor_vae': Repository(
        'google-research/disentanglement_lib', pictures.factor_vae,
        lambda: (draw('uniform', 64, 64, 1),), 'two optimizers inside, shuffles of the batch',
        optimizer=smooth_adam),
    'tracker': Repository(
        'bilylee/SiamFC-TensorFlow', pictures.tracker, pairs,
        'batch norm of slim in place, called twice', settings=SYNC,
        optimizer=lambda: tf.train.MomentumOptimizer(0.01, 0.9)),
    'separation': Repository('snsun/pit-speech-separation', signals.separation, mixtures,
                             'a sum over the batch, an optimizer inside'),
    'clicked': Repository(
        'QingyaoAi/Unbiased-Learning-to-Rank', tables.clicked, searches,
        'placeholders, two nets that weigh each other',
        optimizer=lambda: tf.train.AdagradOptimizer(0.05)),
    'segments': Repository(
        'hellochick/ICNet-tensorflow', pictures.segments, streets,
        'means by masks, penalties in the loss', settings=SYNC,
        optimizer=lambda: tf.train.GradientDescentOptimizer(1e-6))}
