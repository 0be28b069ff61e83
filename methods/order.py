"""The order of rows in tables. Records do not hash this file: after an edit none runs again."""

# Other rows follow in alphabetical order.
ORDER = (
    "dense lora random-skip random-skip-layers shortgpt shortened-ppl shortened-taylor sleb "
    "blockpruner slicegpt laco llm-pruner replaceme replaceme-cosine flap ffn-skipllm "
    "mod-d d-llm mindskip mindskip-block skipgpt-joint skipgpt-rt flexidepth diffskip hero"
).split()
