"""Models of a few kilobytes with random weights, saved as downloaded ones lie on disk. They read letters, and 64 tokens."""

from string import ascii_lowercase

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def save_tiny_model(folder, *, head=True, labels=1, weights=None):
    """A cross-encoder as transformers saves one.

    Args:
        folder: made if need be.
        head: False saves the encoder alone, as an embedding model is.
        labels: of the head.
        weights: a number that stands in place of all weights of the head.
    """
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertModel

    config = BertConfig(num_attention_heads=2, max_position_embeddings=64, num_labels=labels, **_sizes())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = BertForSequenceClassification(config) if head else BertModel(config)
    if weights is not None:
        torch.nn.init.constant_(model.classifier.weight, weights)
    return _save(model, folder)


def save_tiny_embedding_model(folder, *, prompts=None):
    """An embedding model of 16 dimensions as sentence-transformers saves one, with CLS pooling as bge has it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    encoder = Transformer(str(save_tiny_model(folder.with_name(f"{folder.name}-encoder"), head=False)))
    model = SentenceTransformer(modules=[encoder, Pooling(16, pooling_mode="cls")], device="cpu", prompts=prompts)
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


def save_tiny_modular_reranker(folder, *, bias=0.0):
    """A cross-encoder of modules over ModernBERT, as the Ettin rerankers are.

    Args:
        folder: made if need be.
        bias: added to every logit.
    """
    import torch
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling
    from transformers import ModernBertConfig, ModernBertModel

    ids = {f"{name}_token_id": number for name, number in (("pad", 0), ("cls", 2), ("bos", 2), ("sep", 3), ("eos", 3))}
    config = ModernBertConfig(num_attention_heads=2, max_position_embeddings=64, **ids, **_sizes())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder = _save(ModernBertModel(config), folder.with_name(f"{folder.name}-encoder"), types=False)
        hidden = Dense(16, 16, bias=False, activation_function=torch.nn.GELU())
        output = Dense(16, 1, activation_function=torch.nn.Identity(), module_output_name="scores")
        torch.nn.init.constant_(output.linear.bias, bias)
    modules = [Transformer(str(encoder)), Pooling(16, pooling_mode="cls"), hidden, LayerNorm(16), output]
    CrossEncoder(modules=modules, device="cpu").save_pretrained(str(folder), create_model_card=False)
    return folder


def _vocabulary():
    return [*SPECIAL, *ascii_lowercase, *(f"##{letter}" for letter in ascii_lowercase)]


def _sizes():
    vocabulary = len(_vocabulary())
    return {
        "vocab_size": vocabulary,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "intermediate_size": 16,
        "initializer_range": 0.5,
    }


def _save(model, folder, *, types=True):
    from transformers import BertTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(_vocabulary()))
    names = ["input_ids", "token_type_ids", "attention_mask"] if types else ["input_ids", "attention_mask"]
    model.save_pretrained(folder)
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_input_names=names).save_pretrained(folder)
    return folder
