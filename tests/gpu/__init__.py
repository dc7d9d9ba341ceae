"""What only a GPU shows, and tests of these tests that need none."""
