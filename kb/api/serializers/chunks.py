from typing import Any

from django.utils.translation import gettext as _
from rest_framework import serializers

from kb.api.etags import Etagged
from kb.api.fields import MAX_ID, StrictBooleanField, StrictCharField, StrictIntegerField, StrictSerializer
from kb.models import Chunk
from kb.services.chunk_work.checks import KEYWORD_CHARACTERS, MOST_ENTRIES, QUESTION_CHARACTERS, TEXT_CHARACTERS
from kb.services.chunk_work.merging import MOST_MERGED
from kb.services.chunk_work.splitting import MOST_PARTS

MOST_AT_ONCE = 10_000
ACTIONS = ("enable", "disable", "delete")


class ChunkSerializer(Etagged, serializers.ModelSerializer[Chunk]):
    is_edited = serializers.SerializerMethodField(help_text="Whether its text is not as it was cut from the document.")

    class Meta:
        model = Chunk
        fields = (
            "id",
            "document_id",
            "knowledge_base_id",
            "position",
            "text",
            "page",
            "heading_path",
            "keywords",
            "questions",
            "enabled",
            "is_edited",
            "token_count",
            "updated_at",
            "etag",
        )
        read_only_fields = fields

    def get_is_edited(self, chunk: Chunk) -> bool:
        return bool(chunk.cut_text)


class ChunkChangeSerializer(StrictSerializer):
    text = StrictCharField(max_length=TEXT_CHARACTERS, trim_whitespace=False)
    enabled = StrictBooleanField(help_text="A disabled chunk is kept, and found by no search.")
    questions = serializers.ListField(
        child=StrictCharField(max_length=QUESTION_CHARACTERS),
        max_length=MOST_ENTRIES,
        help_text="All questions that it answers: whoever asks alike finds it.",
    )
    keywords = serializers.ListField(
        child=StrictCharField(max_length=KEYWORD_CHARACTERS),
        max_length=MOST_ENTRIES,
        help_text="All keywords that it is found by. None: they are extracted from its text.",
    )


class ChunkIdsField(serializers.ListField):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(child=StrictIntegerField(min_value=1, max_value=MAX_ID), **kwargs)


class ChunkMergeSerializer(StrictSerializer):
    chunk_ids = ChunkIdsField(min_length=2, max_length=MOST_MERGED, help_text="Chunks that follow one another.")


class ChunkSplitSerializer(StrictSerializer):
    at = serializers.ListField(
        child=StrictIntegerField(min_value=1, max_value=TEXT_CHARACTERS),
        min_length=1,
        max_length=MOST_PARTS - 1,
        required=False,
        help_text="Offsets in its text, in characters, where parts begin. This or `texts`.",
    )
    texts = serializers.ListField(
        child=StrictCharField(max_length=TEXT_CHARACTERS),
        min_length=2,
        max_length=MOST_PARTS,
        required=False,
        help_text="The parts, which together are its text; white space between them may be left out. This or `at`.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Offsets or texts, not both."""
        if ("at" in attrs) == ("texts" in attrs):
            raise serializers.ValidationError({"at": [_("Give offsets, or the texts of the parts in “texts”.")]})
        return attrs


class BulkChunksSerializer(StrictSerializer):
    ids = ChunkIdsField(min_length=1, max_length=MOST_AT_ONCE, help_text="Chunks of the knowledge base.")
    action = serializers.ChoiceField(ACTIONS)


class BulkChangedSerializer(serializers.Serializer[Any]):
    changed = serializers.IntegerField(help_text="How many were not so already.")


class NeighboursSerializer(serializers.Serializer[Any]):
    previous = ChunkSerializer(many=True, help_text="In the order of the document.")
    next = ChunkSerializer(many=True)


class NeighboursFilterSerializer(serializers.Serializer[Any]):
    count = serializers.IntegerField(
        required=False, default=1, min_value=1, max_value=20, help_text="How many on each side."
    )


class FoundBySerializer(serializers.Serializer[Any]):
    trace_id = serializers.UUIDField(help_text="Of the search: read or replay it by this.")
    query = serializers.CharField(help_text="Blank where this installation keeps no queries.")
    rank = serializers.IntegerField(help_text="Among its results, from 1.")
    score = serializers.FloatField(allow_null=True)
    profile = serializers.CharField()
    profile_version = serializers.IntegerField()
    created_at = serializers.DateTimeField()


class FoundByListSerializer(serializers.Serializer[Any]):
    queries = FoundBySerializer(many=True, help_text="The newest first.")


class DuplicateSerializer(serializers.Serializer[Any]):
    similarity = serializers.FloatField(help_text="Terms in common, of those that one of the two has.")
    chunk = ChunkSerializer()


class DuplicatesSerializer(serializers.Serializer[Any]):
    duplicates = DuplicateSerializer(many=True, help_text="The most alike first.")


class DuplicateGroupSerializer(serializers.Serializer[Any]):
    chunk_ids = serializers.ListField(child=serializers.IntegerField())
    similarity = serializers.FloatField(help_text="Of the least alike of the pairs that were compared, from 0.8 to 1.")


class NearDuplicatesSerializer(serializers.Serializer[Any]):
    groups = DuplicateGroupSerializer(many=True, help_text="The most alike first; of very many the first.")
    group_count = serializers.IntegerField(help_text="Of all.")
    is_current = serializers.BooleanField(help_text="Whether no chunk has changed since.")
    is_awaited = serializers.BooleanField(help_text="Whether a worker is looking for them.")
    was_looked = serializers.BooleanField(help_text="False: nobody has looked yet; send a POST.")
