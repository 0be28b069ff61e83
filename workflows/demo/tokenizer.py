"""The word-level tokenizer of a world: one word, one token."""

from __future__ import annotations

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from workflows.demo.world import World, vocabulary

PAD, BOS, EOS, UNK = "<pad>", "<s>", "</s>", "<unk>"
SPECIALS = (PAD, BOS, EOS, UNK)
PAD_ID, BOS_ID, EOS_ID, UNK_ID = range(4)
MAX_LENGTH = 256


def word_ids(world: World) -> dict[str, int]:
    """Return the id of every token, the specials first."""
    return {word: index for index, word in enumerate(SPECIALS + vocabulary(world))}


def build_tokenizer(world: World) -> PreTrainedTokenizerFast:
    """Build the tokenizer: split at white space, add BOS in front, nothing at the end."""
    backend = Tokenizer(WordLevel(word_ids(world), unk_token=UNK))
    backend.pre_tokenizer = WhitespaceSplit()
    backend.post_processor = TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, BOS_ID)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK,
        model_max_length=MAX_LENGTH,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
