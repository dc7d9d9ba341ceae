"""Idx: the files of MNIST and its kin, and the sample that is made of them."""
