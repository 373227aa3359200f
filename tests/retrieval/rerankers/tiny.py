"""A cross-encoder of a few kilobytes with random weights, saved as a downloaded one lies on disk."""

from string import ascii_lowercase

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def save_tiny_model(folder, *, head=True, labels=1, weights=None):
    """Reads letters; texts of up to 64 tokens.

    Args:
        folder: made if need be.
        head: False saves the encoder alone, as an embedding model is.
        labels: of the head.
        weights: a number that stands in place of all weights of the head.
    """
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join([*SPECIAL, *ascii_lowercase, *(f"##{letter}" for letter in ascii_lowercase)]))
    config = BertConfig(
        vocab_size=len(vocabulary.read_text().splitlines()),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
        initializer_range=0.5,
        num_labels=labels,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = BertForSequenceClassification(config) if head else BertModel(config)
    if weights is not None:
        torch.nn.init.constant_(model.classifier.weight, weights)
    model.save_pretrained(folder)
    BertTokenizerFast(vocab=str(vocabulary)).save_pretrained(folder)
    return folder
