"""The header of an image is what a decoder finds, for whatever stands before it."""

import pytest

from tests.data.pictures import jpegs, picture
from towers.tensorflow_v1 import tf
from towers_data.image_header import ImageHeader, check_is_whole, read_image_header
from towers_data.png import encode_png


def test_size_and_channels_of_jpegs_and_pngs():
  assert read_image_header(jpegs(1, 21, 50)[0]) == ImageHeader('jpeg', 21, 50, 3)
  assert read_image_header(encode_png(picture(0, 7, 300))) == ImageHeader('png', 7, 300, 3)
  assert read_image_header(encode_png(picture(0)[..., :1])).channels == 1
  with tf.Graph().as_default(), tf.Session() as session:
    grey = tf.constant(picture(0)[..., :1])
    contents = session.run([
        tf.image.encode_jpeg(grey),
        tf.image.encode_jpeg(tf.constant(picture(0)), progressive=True),
        tf.image.encode_png(tf.constant(picture(0)))
    ])
  assert [read_image_header(content) for content in contents] == [
      ImageHeader('jpeg', 24, 32, 1), ImageHeader('jpeg', 24, 32, 3), ImageHeader('png', 24, 32, 3)]
  for content in contents:
    check_is_whole(content)
    with pytest.raises(ValueError, match='cut off'):
      check_is_whole(content[:-70])


def test_segments_and_padding_before_the_frame_are_passed_over():
  content = jpegs(1)[0]
  for between in (b'\xff\xfe\x00\x05abc', b'\xff\xff\xff\xe5\x00\x02', b'\xff\x01', b'too many',
                  b'\xff\xe1\xff\xff' + bytes(65533)):
    assert read_image_header(content[:2] + between + content[2:]) == ImageHeader('jpeg', 24, 32, 3)


@pytest.mark.parametrize('content, words', [
    (b'', 'is empty'), (b'\xff', 'neither'), (b'\xff\xd8', 'ends within'), (
        b'\xff\xd8\xff\xe0\x00\x00', 'ends within'),
    (b'\xff\xd8abcdef', 'ends within'), (b'BM' + bytes(50), 'BMP'), (b'RIFF' + bytes(50), 'WebP'),
    (b'\x89PNG\r\n\x1a\n' + bytes(30), 'without its header')])
def test_other_bytes_are_told_apart(content, words):
  with pytest.raises(ValueError, match=words):
    read_image_header(content)
