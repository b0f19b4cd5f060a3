"""The layout of a row of seen tokens: bit ``token % 32`` of word ``token // 32``, as int32."""

TOKENS_PER_WORD = 32


def num_mask_words(vocab_size: int) -> int:
    """Number of 32-bit words that hold one bit for each of ``vocab_size`` tokens."""
    return -(-vocab_size // TOKENS_PER_WORD)
