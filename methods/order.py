"""The table's order, apart from code that fits: a name here marks no record as of other code."""

# Rows that are not named here follow in alphabetical order.
ORDER = (
    "dense lora random-skip random-skip-layers shortgpt shortened-ppl shortened-taylor sleb "
    "blockpruner slicegpt laco llm-pruner replaceme replaceme-cosine flap ffn-skipllm "
    "mod-d d-llm mindskip mindskip-block skipgpt-joint skipgpt-rt flexidepth diffskip hero"
).split()
