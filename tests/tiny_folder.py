"""A target on disk that loads in a moment: random weights, a tokenizer of single bytes, a chat template."""

import json

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ raise_exception('no system messages') }}{% endif %}"
    "<u>{{ message['content'] }}</u>"
    "{% endfor %}<a>"
)
END = "</a>"
SPECIAL = (END, "<u>", "</u>", "<a>")


def tiny_folder(folder, *, seed=0, layers=4, positions=2048):
    """A Llama of 32 dimensions whose tokens are bytes; `temperature` above 0 makes its answers end."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate((*SPECIAL, *letters))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        additional_special_tokens=list(SPECIAL[1:]),
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
        max_position_embeddings=positions,
        bos_token_id=None,
        eos_token_id=0,
    )
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
        model.lm_head.weight[0] *= 3  # or answers would hardly ever end
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def write_prompts(path, texts):
    """A file of plain prompts."""
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return path
