from typing import Any

from rest_framework import serializers

from kb.api.fields import StrictBooleanField, StrictCharField, StrictSerializer
from kb.models import Reembedding


class EmbeddingModelChangeSerializer(StrictSerializer):
    model = StrictCharField(max_length=255, help_text="Id of the embedding model to move to; its dimension may differ.")
    swap = StrictBooleanField(
        default=False, help_text="Change searches over as soon as every chunk is embedded, and not only when told to."
    )


class EvaluateBothSerializer(StrictSerializer):
    eval_set_id = serializers.IntegerField(min_value=1, help_text="An evaluation set of this knowledge base.")


class ReembeddingProgressSerializer(serializers.Serializer[Any]):
    done = serializers.IntegerField(help_text="Chunks that have their vector of the target model.")
    total = serializers.IntegerField(help_text="Chunks in all.")
    per_second = serializers.FloatField(allow_null=True, help_text="Chunks a second, since this run of the work began.")
    seconds_left = serializers.IntegerField(allow_null=True)


class EmbeddingModelSerializer(serializers.Serializer[Any]):
    model = serializers.CharField(help_text="That searches use.")
    dimension = serializers.IntegerField(allow_null=True)
    target = serializers.CharField(allow_null=True, help_text="The model that the knowledge base is on its way to.")
    target_dimension = serializers.IntegerField(allow_null=True)
    previous = serializers.CharField(
        allow_null=True, help_text="The former model, whose vectors are kept for a return until they are dropped."
    )
    status = serializers.ChoiceField(Reembedding.Status.choices, allow_null=True, help_text="Of the last change.")
    swaps = serializers.BooleanField(
        help_text="Whether searches change over by themselves when every chunk is embedded."
    )
    error = serializers.CharField(allow_blank=True)
    progress = ReembeddingProgressSerializer(allow_null=True)
    swapped_at = serializers.DateTimeField(allow_null=True)


class EvaluatedBothSerializer(serializers.Serializer[Any]):
    run_in_use = serializers.IntegerField(help_text="Id of the evaluation run with the model in use.")
    run_other = serializers.IntegerField(help_text="Id of the run with the target or, without one, the former model.")
