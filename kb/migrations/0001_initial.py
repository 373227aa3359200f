import uuid

import django.contrib.auth.models
import django.contrib.auth.validators
import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.core.validators
import django.db.models.constraints
import django.db.models.deletion
import django.utils.timezone
import pgtrigger.compiler
import pgvector.django
import pgvector.django.halfvec
from django.conf import settings
from django.db import migrations, models

import kb.access.models
import kb.base.text
from kb.migrations import _triggers


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
    ]

    operations = [
        pgvector.django.VectorExtension(),
        migrations.CreateModel(
            name="EvalSet",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=120, verbose_name="name")),
            ],
            options={
                "verbose_name": "evaluation set",
                "verbose_name_plural": "evaluation sets",
            },
        ),
        migrations.CreateModel(
            name="Installation",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
            ],
        ),
        migrations.CreateModel(
            name="KnowledgeBase",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=120, verbose_name="name")),
                ("description", models.TextField(blank=True, verbose_name="description")),
                (
                    "language",
                    models.CharField(
                        choices=[("zh", "Chinese"), ("en", "English")],
                        default="zh",
                        max_length=2,
                        verbose_name="language",
                    ),
                ),
                ("embedding_model", models.CharField(max_length=255, verbose_name="embedding model")),
                ("target_embedding_model", models.CharField(blank=True, editable=False, max_length=255)),
                ("dimension", models.PositiveIntegerField(editable=False, null=True, verbose_name="dimension")),
                (
                    "tokenizer_id",
                    models.CharField(blank=True, editable=False, max_length=120, verbose_name="tokenizer"),
                ),
                (
                    "chunk_size",
                    models.PositiveIntegerField(
                        default=500,
                        validators=[
                            django.core.validators.MinValueValidator(20),
                            django.core.validators.MaxValueValidator(8000),
                        ],
                        verbose_name="chunk size",
                    ),
                ),
                (
                    "chunk_overlap",
                    models.PositiveIntegerField(
                        default=50,
                        validators=[django.core.validators.MaxValueValidator(4000)],
                        verbose_name="chunk overlap",
                    ),
                ),
                (
                    "chunk_unit",
                    models.CharField(
                        choices=[("characters", "characters"), ("tokens", "tokens")],
                        default="characters",
                        max_length=12,
                        verbose_name="chunk unit",
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
            ],
            options={
                "verbose_name": "knowledge base",
                "verbose_name_plural": "knowledge bases",
                "ordering": ("name", "pk"),
            },
        ),
        migrations.CreateModel(
            name="User",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("password", models.CharField(max_length=128, verbose_name="password")),
                ("last_login", models.DateTimeField(blank=True, null=True, verbose_name="last login")),
                (
                    "is_superuser",
                    models.BooleanField(
                        default=False,
                        help_text="Designates that this user has all permissions without explicitly assigning them.",
                        verbose_name="superuser status",
                    ),
                ),
                (
                    "username",
                    models.CharField(
                        error_messages={"unique": "A user with that username already exists."},
                        help_text="Required. 150 characters or fewer. Letters, digits and @/./+/-/_ only.",
                        max_length=150,
                        unique=True,
                        validators=[django.contrib.auth.validators.UnicodeUsernameValidator()],
                        verbose_name="username",
                    ),
                ),
                ("first_name", models.CharField(blank=True, max_length=150, verbose_name="first name")),
                ("last_name", models.CharField(blank=True, max_length=150, verbose_name="last name")),
                ("email", models.EmailField(blank=True, max_length=254, verbose_name="email address")),
                (
                    "is_staff",
                    models.BooleanField(
                        default=False,
                        help_text="Designates whether the user can log into this admin site.",
                        verbose_name="staff status",
                    ),
                ),
                (
                    "is_active",
                    models.BooleanField(
                        default=True,
                        help_text="Designates whether this user should be treated as active. Unselect this instead of deleting accounts.",
                        verbose_name="active",
                    ),
                ),
                ("date_joined", models.DateTimeField(default=django.utils.timezone.now, verbose_name="date joined")),
                (
                    "groups",
                    models.ManyToManyField(
                        blank=True,
                        help_text="The groups this user belongs to. A user will get all permissions granted to each of their groups.",
                        related_name="user_set",
                        related_query_name="user",
                        to="auth.group",
                        verbose_name="groups",
                    ),
                ),
                (
                    "user_permissions",
                    models.ManyToManyField(
                        blank=True,
                        help_text="Specific permissions for this user.",
                        related_name="user_set",
                        related_query_name="user",
                        to="auth.permission",
                        verbose_name="user permissions",
                    ),
                ),
            ],
            options={
                "verbose_name": "user",
                "verbose_name_plural": "users",
                "abstract": False,
            },
            managers=[
                ("objects", django.contrib.auth.models.UserManager()),
            ],
        ),
        migrations.CreateModel(
            name="Document",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("title", models.CharField(blank=True, max_length=500, verbose_name="title")),
                ("source", models.CharField(blank=True, max_length=1000, verbose_name="source")),
                (
                    "source_type",
                    models.CharField(
                        choices=[("book", "book"), ("video", "video"), ("qa", "Q&A"), ("web", "web")],
                        default="book",
                        max_length=12,
                        verbose_name="source type",
                    ),
                ),
                (
                    "file",
                    models.FileField(
                        blank=True,
                        max_length=500,
                        upload_to=kb.content.models.upload_path,
                        verbose_name="file",
                    ),
                ),
                ("mime", models.CharField(blank=True, max_length=120, verbose_name="type")),
                ("size", models.PositiveBigIntegerField(default=0, verbose_name="size")),
                ("sha256", models.CharField(max_length=64)),
                (
                    "metadata",
                    models.JSONField(
                        blank=True,
                        default=dict,
                        validators=[kb.base.text.validate_metadata],
                        verbose_name="metadata",
                    ),
                ),
                (
                    "tags",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=60),
                        blank=True,
                        default=list,
                        size=None,
                        verbose_name="tags",
                    ),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("pending", "waiting"),
                            ("processing", "processing"),
                            ("ready", "ready"),
                            ("failed", "failed"),
                        ],
                        default="pending",
                        max_length=12,
                        verbose_name="status",
                    ),
                ),
                (
                    "stage",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("parse", "parsing"),
                            ("chunk", "chunking"),
                            ("tokenize", "tokenising"),
                            ("embed", "embedding"),
                            ("write", "writing"),
                        ],
                        max_length=12,
                        verbose_name="stage",
                    ),
                ),
                ("progress", models.PositiveSmallIntegerField(default=0, verbose_name="progress")),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                ("keep_chunks", models.BooleanField(default=False, editable=False)),
                ("lease", models.UUIDField(editable=False, null=True)),
                ("lease_until", models.DateTimeField(editable=False, null=True)),
                ("error_code", models.CharField(blank=True, max_length=40)),
                ("error", models.TextField(blank=True, verbose_name="error")),
                ("error_params", models.JSONField(default=dict, editable=False)),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="created by",
                    ),
                ),
            ],
            options={
                "verbose_name": "document",
                "verbose_name_plural": "documents",
                "ordering": ("-created_at", "-pk"),
            },
        ),
        migrations.CreateModel(
            name="Chunk",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("position", models.PositiveIntegerField(verbose_name="position")),
                ("text", models.TextField(verbose_name="text")),
                ("page", models.PositiveIntegerField(blank=True, null=True, verbose_name="page")),
                (
                    "heading_path",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=300),
                        blank=True,
                        default=list,
                        size=None,
                        verbose_name="headings",
                    ),
                ),
                ("enabled", models.BooleanField(default=True, verbose_name="enabled")),
                ("content_hash", models.CharField(editable=False, max_length=64)),
                ("token_count", models.PositiveIntegerField(default=0, editable=False, verbose_name="tokens")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                (
                    "document",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="chunks",
                        to="kb.document",
                        verbose_name="document",
                    ),
                ),
            ],
            options={
                "verbose_name": "chunk",
                "verbose_name_plural": "chunks",
                "ordering": ("document_id", "position"),
            },
        ),
        migrations.CreateModel(
            name="EvalQuery",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("external_id", models.CharField(max_length=200)),
                ("text", models.TextField(verbose_name="query")),
                ("answerable", models.BooleanField(default=True, verbose_name="answerable")),
                (
                    "eval_set",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="queries", to="kb.evalset"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Judgment",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("grade", models.PositiveSmallIntegerField(verbose_name="grade")),
                (
                    "document",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="judgments", to="kb.document"
                    ),
                ),
                (
                    "query",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="judgments", to="kb.evalquery"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="KnowledgeBaseVersion",
            fields=[
                (
                    "knowledge_base",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="version_row",
                        serialize=False,
                        to="kb.knowledgebase",
                    ),
                ),
                ("version", models.BigIntegerField()),
            ],
            options={
                "db_table": "kb_versions",
            },
        ),
        migrations.AddField(
            model_name="knowledgebase",
            name="owner",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT,
                related_name="knowledge_bases",
                to=settings.AUTH_USER_MODEL,
                verbose_name="owner",
            ),
        ),
        migrations.AddField(
            model_name="evalset",
            name="knowledge_base",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="eval_sets", to="kb.knowledgebase"
            ),
        ),
        migrations.AddField(
            model_name="document",
            name="knowledge_base",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE,
                related_name="documents",
                to="kb.knowledgebase",
                verbose_name="knowledge base",
            ),
        ),
        migrations.CreateModel(
            name="ChunkPostings",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("tokenizer_id", models.CharField(max_length=120)),
                ("terms", models.BinaryField()),
                ("frequencies", models.BinaryField()),
                ("length", models.PositiveIntegerField()),
                (
                    "chunk",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="postings",
                        to="kb.chunk",
                    ),
                ),
                (
                    "knowledge_base",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="kb.knowledgebase",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="ChunkEmbedding",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(choices=[("content", "content")], default="content", max_length=10)),
                ("model", models.CharField(max_length=255)),
                ("vector", pgvector.django.halfvec.HalfVectorField()),
                ("enabled", models.BooleanField(default=True)),
                (
                    "chunk",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="embeddings",
                        to="kb.chunk",
                    ),
                ),
                (
                    "knowledge_base",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="kb.knowledgebase",
                    ),
                ),
            ],
        ),
        migrations.AddField(
            model_name="chunk",
            name="knowledge_base",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE,
                related_name="chunks",
                to="kb.knowledgebase",
                verbose_name="knowledge base",
            ),
        ),
        migrations.CreateModel(
            name="BM25Index",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version", models.BigIntegerField(verbose_name="version")),
                ("tokenizer_id", models.CharField(max_length=120, verbose_name="tokenizer")),
                ("format", models.CharField(max_length=80)),
                ("payload", models.BinaryField()),
                ("chunk_count", models.PositiveIntegerField(verbose_name="chunks")),
                ("built_at", models.DateTimeField(auto_now=True, verbose_name="built")),
                (
                    "knowledge_base",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, related_name="bm25_index", to="kb.knowledgebase"
                    ),
                ),
            ],
            options={
                "verbose_name": "BM25 index",
                "verbose_name_plural": "BM25 indexes",
                "db_table": "bm25_indexes",
            },
        ),
        migrations.CreateModel(
            name="ApiKey",
            fields=[
                (
                    "id",
                    models.CharField(editable=False, max_length=150, primary_key=True, serialize=False, unique=True),
                ),
                ("prefix", models.CharField(editable=False, max_length=8, unique=True)),
                ("hashed_key", models.CharField(editable=False, max_length=150)),
                ("created", models.DateTimeField(auto_now_add=True, db_index=True)),
                (
                    "name",
                    models.CharField(
                        default=None,
                        help_text="A free-form name for the API key. Need not be unique. 50 characters max.",
                        max_length=50,
                    ),
                ),
                (
                    "revoked",
                    models.BooleanField(
                        blank=True,
                        default=False,
                        help_text="If the API key is revoked, clients cannot use it anymore. (This cannot be undone.)",
                    ),
                ),
                (
                    "expiry_date",
                    models.DateTimeField(
                        blank=True,
                        help_text="Once API key expires, clients cannot use it anymore.",
                        null=True,
                        verbose_name="Expires",
                    ),
                ),
                (
                    "scope",
                    models.CharField(
                        choices=[("read", "read"), ("write", "read and write")],
                        default="read",
                        max_length=8,
                        verbose_name="scope",
                    ),
                ),
                ("bound", models.BooleanField(default=False, editable=False, verbose_name="bound to knowledge bases")),
                ("last_used_at", models.DateTimeField(blank=True, editable=False, null=True, verbose_name="last used")),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="api_keys",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="user",
                    ),
                ),
                (
                    "knowledge_bases",
                    models.ManyToManyField(
                        blank=True,
                        help_text="Leave empty for every knowledge base that the user may see.",
                        related_name="api_keys",
                        to="kb.knowledgebase",
                        verbose_name="knowledge bases",
                    ),
                ),
            ],
            options={
                "verbose_name": "API key",
                "verbose_name_plural": "API keys",
                "ordering": ("-created",),
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="Membership",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "role",
                    models.CharField(
                        choices=[("viewer", "viewer"), ("editor", "editor"), ("owner", "owner")],
                        default="viewer",
                        max_length=8,
                        verbose_name="role",
                    ),
                ),
                (
                    "knowledge_base",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="memberships", to="kb.knowledgebase"
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="user",
                    ),
                ),
            ],
            options={
                "verbose_name": "membership",
                "verbose_name_plural": "memberships",
            },
        ),
        migrations.CreateModel(
            name="RetrievalProfile",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=80, verbose_name="name")),
                ("version", models.PositiveIntegerField(default=1, verbose_name="version")),
                ("description", models.TextField(blank=True, verbose_name="description")),
                ("settings", models.JSONField(blank=True, default=dict, verbose_name="settings")),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
            ],
            options={
                "verbose_name": "retrieval profile",
                "verbose_name_plural": "retrieval profiles",
                "ordering": ("name", "-version"),
                "constraints": [models.UniqueConstraint(fields=("name", "version"), name="profile_version_once")],
            },
        ),
        migrations.AddField(
            model_name="knowledgebase",
            name="profile",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT,
                related_name="knowledge_bases",
                to="kb.retrievalprofile",
                verbose_name="retrieval profile",
            ),
        ),
        migrations.CreateModel(
            name="SearchLog",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False, verbose_name="trace id"
                    ),
                ),
                (
                    "knowledge_base_ids",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), size=None, verbose_name="knowledge bases"
                    ),
                ),
                ("query", models.TextField(verbose_name="query")),
                ("profile", models.CharField(max_length=80, verbose_name="profile")),
                ("profile_version", models.PositiveIntegerField(verbose_name="profile version")),
                ("configuration", models.JSONField(verbose_name="configuration")),
                ("trace", models.JSONField(verbose_name="trace")),
                ("degraded", models.JSONField(default=list, verbose_name="degraded")),
                ("result_count", models.PositiveIntegerField(verbose_name="results")),
                ("duration_ms", models.FloatField(verbose_name="milliseconds")),
                ("created_at", models.DateTimeField(db_index=True, verbose_name="time")),
                (
                    "user",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="user",
                    ),
                ),
            ],
            options={
                "verbose_name": "search log entry",
                "verbose_name_plural": "search log",
                "ordering": ("-created_at",),
            },
        ),
        migrations.AddConstraint(
            model_name="evalquery",
            constraint=models.UniqueConstraint(fields=("eval_set", "external_id"), name="eval_query_once"),
        ),
        migrations.AddConstraint(
            model_name="judgment",
            constraint=models.UniqueConstraint(fields=("query", "document"), name="judgment_once"),
        ),
        migrations.AddConstraint(
            model_name="evalset",
            constraint=models.UniqueConstraint(fields=("knowledge_base", "name"), name="eval_set_name_per_kb"),
        ),
        migrations.AddIndex(
            model_name="document",
            index=models.Index(fields=["knowledge_base", "source"], name="document_by_source"),
        ),
        migrations.AddIndex(
            model_name="document",
            index=models.Index(
                condition=models.Q(("status__in", ("pending", "processing"))),
                fields=["lease_until"],
                name="document_unfinished",
            ),
        ),
        migrations.AddConstraint(
            model_name="document",
            constraint=models.UniqueConstraint(fields=("knowledge_base", "sha256"), name="document_bytes_once_per_kb"),
        ),
        migrations.AddIndex(
            model_name="chunkpostings",
            index=models.Index(fields=["knowledge_base", "tokenizer_id"], name="postings_by_kb"),
        ),
        migrations.AddConstraint(
            model_name="chunkpostings",
            constraint=models.UniqueConstraint(fields=("chunk", "tokenizer_id"), name="postings_once_per_tokenizer"),
        ),
        _triggers.AddTrigger(
            model_name="chunkpostings",
            trigger=pgtrigger.compiler.Trigger(
                name="version_insert",
                sql=pgtrigger.compiler.UpsertTriggerSql(
                    func="\n    PERFORM 1 FROM kb_versions v WHERE v.knowledge_base_id IN (SELECT knowledge_base_id FROM new_rows)\n        ORDER BY v.knowledge_base_id FOR UPDATE;\n    UPDATE kb_versions v SET version = nextval('kb_version_seq') WHERE v.knowledge_base_id IN (SELECT knowledge_base_id FROM new_rows);\n RETURN NULL;",
                    hash="4f61f0c38a5ecdd6675a48dc98de6ca96752cdb2",
                    level="STATEMENT",
                    operation="INSERT",
                    pgid="pgtrigger_version_insert_3f35e",
                    referencing="REFERENCING NEW TABLE AS new_rows ",
                    table="kb_chunkpostings",
                    when="AFTER",
                ),
            ),
        ),
        _triggers.AddTrigger(
            model_name="chunkpostings",
            trigger=pgtrigger.compiler.Trigger(
                name="version_update",
                sql=pgtrigger.compiler.UpsertTriggerSql(
                    func="\n    PERFORM 1 FROM kb_versions v WHERE v.knowledge_base_id IN (SELECT knowledge_base_id FROM old_rows UNION SELECT knowledge_base_id FROM new_rows)\n        ORDER BY v.knowledge_base_id FOR UPDATE;\n    UPDATE kb_versions v SET version = nextval('kb_version_seq') WHERE v.knowledge_base_id IN (SELECT knowledge_base_id FROM old_rows UNION SELECT knowledge_base_id FROM new_rows);\n RETURN NULL;",
                    hash="38c840d5be8b7b6a234befe45375ed13c1f5f537",
                    level="STATEMENT",
                    operation="UPDATE",
                    pgid="pgtrigger_version_update_0d8e2",
                    referencing="REFERENCING OLD TABLE AS old_rows  NEW TABLE AS new_rows ",
                    table="kb_chunkpostings",
                    when="AFTER",
                ),
            ),
        ),
        _triggers.AddTrigger(
            model_name="chunkpostings",
            trigger=pgtrigger.compiler.Trigger(
                name="version_delete",
                sql=pgtrigger.compiler.UpsertTriggerSql(
                    func="\n    PERFORM 1 FROM kb_versions v WHERE v.knowledge_base_id IN (SELECT knowledge_base_id FROM old_rows o WHERE EXISTS (SELECT 1 FROM kb_chunk c WHERE c.id = o.chunk_id))\n        ORDER BY v.knowledge_base_id FOR UPDATE;\n    UPDATE kb_versions v SET version = nextval('kb_version_seq') WHERE v.knowledge_base_id IN (SELECT knowledge_base_id FROM old_rows o WHERE EXISTS (SELECT 1 FROM kb_chunk c WHERE c.id = o.chunk_id));\n RETURN NULL;",
                    hash="a8208e3368204c219708d6f2c9b74020ba6b72b3",
                    level="STATEMENT",
                    operation="DELETE",
                    pgid="pgtrigger_version_delete_f0623",
                    referencing="REFERENCING OLD TABLE AS old_rows ",
                    table="kb_chunkpostings",
                    when="AFTER",
                ),
            ),
        ),
        migrations.AddIndex(
            model_name="chunkembedding",
            index=models.Index(fields=["knowledge_base", "model", "kind"], name="vector_by_kb"),
        ),
        migrations.AddConstraint(
            model_name="chunkembedding",
            constraint=models.UniqueConstraint(
                fields=("chunk", "kind", "model"), name="vector_once_per_kind_and_model"
            ),
        ),
        migrations.AddIndex(
            model_name="chunk",
            index=models.Index(fields=["content_hash"], name="chunk_by_content"),
        ),
        migrations.AddConstraint(
            model_name="chunk",
            constraint=models.UniqueConstraint(
                deferrable=django.db.models.constraints.Deferrable["DEFERRED"],
                fields=("document", "position"),
                name="chunk_position_once",
            ),
        ),
        _triggers.AddTrigger(
            model_name="chunk",
            trigger=pgtrigger.compiler.Trigger(
                name="version_insert",
                sql=pgtrigger.compiler.UpsertTriggerSql(
                    func="\n    PERFORM 1 FROM kb_versions v WHERE v.knowledge_base_id IN (SELECT knowledge_base_id FROM new_rows)\n        ORDER BY v.knowledge_base_id FOR UPDATE;\n    UPDATE kb_versions v SET version = nextval('kb_version_seq') WHERE v.knowledge_base_id IN (SELECT knowledge_base_id FROM new_rows);\n RETURN NULL;",
                    hash="55cb594b5f71a056fbf63bef43eb1f0dc53d0014",
                    level="STATEMENT",
                    operation="INSERT",
                    pgid="pgtrigger_version_insert_06a34",
                    referencing="REFERENCING NEW TABLE AS new_rows ",
                    table="kb_chunk",
                    when="AFTER",
                ),
            ),
        ),
        _triggers.AddTrigger(
            model_name="chunk",
            trigger=pgtrigger.compiler.Trigger(
                name="version_update",
                sql=pgtrigger.compiler.UpsertTriggerSql(
                    func="\n    UPDATE kb_chunkembedding e SET enabled = n.enabled\n        FROM new_rows n JOIN old_rows o ON o.id = n.id\n        WHERE e.chunk_id = n.id AND n.enabled IS DISTINCT FROM o.enabled;\n    \n    PERFORM 1 FROM kb_versions v WHERE v.knowledge_base_id IN (SELECT knowledge_base_id FROM old_rows UNION SELECT knowledge_base_id FROM new_rows)\n        ORDER BY v.knowledge_base_id FOR UPDATE;\n    UPDATE kb_versions v SET version = nextval('kb_version_seq') WHERE v.knowledge_base_id IN (SELECT knowledge_base_id FROM old_rows UNION SELECT knowledge_base_id FROM new_rows);\n RETURN NULL;",
                    hash="3b6f48bfcf2213317ed45ec483d88b148315f373",
                    level="STATEMENT",
                    operation="UPDATE",
                    pgid="pgtrigger_version_update_d07b9",
                    referencing="REFERENCING OLD TABLE AS old_rows  NEW TABLE AS new_rows ",
                    table="kb_chunk",
                    when="AFTER",
                ),
            ),
        ),
        _triggers.AddTrigger(
            model_name="chunk",
            trigger=pgtrigger.compiler.Trigger(
                name="version_delete",
                sql=pgtrigger.compiler.UpsertTriggerSql(
                    func="\n    PERFORM 1 FROM kb_versions v WHERE v.knowledge_base_id IN (SELECT knowledge_base_id FROM old_rows)\n        ORDER BY v.knowledge_base_id FOR UPDATE;\n    UPDATE kb_versions v SET version = nextval('kb_version_seq') WHERE v.knowledge_base_id IN (SELECT knowledge_base_id FROM old_rows);\n RETURN NULL;",
                    hash="6041ca27dba0b6f449a374ff9f48aa5b71f48b78",
                    level="STATEMENT",
                    operation="DELETE",
                    pgid="pgtrigger_version_delete_c7517",
                    referencing="REFERENCING OLD TABLE AS old_rows ",
                    table="kb_chunk",
                    when="AFTER",
                ),
            ),
        ),
        migrations.AddConstraint(
            model_name="membership",
            constraint=models.UniqueConstraint(fields=("knowledge_base", "user"), name="membership_once"),
        ),
        migrations.AddConstraint(
            model_name="knowledgebase",
            constraint=models.UniqueConstraint(fields=("owner", "name"), name="kb_name_per_owner"),
        ),
        _triggers.AddTrigger(
            model_name="knowledgebase",
            trigger=pgtrigger.compiler.Trigger(
                name="version_row",
                sql=pgtrigger.compiler.UpsertTriggerSql(
                    func="INSERT INTO kb_versions (knowledge_base_id, version) SELECT id, nextval('kb_version_seq') FROM new_rows; RETURN NULL;",
                    hash="b104e35964178c43f3d726e5743359d19f40e9a8",
                    level="STATEMENT",
                    operation="INSERT",
                    pgid="pgtrigger_version_row_d806f",
                    referencing="REFERENCING NEW TABLE AS new_rows ",
                    table="kb_knowledgebase",
                    when="AFTER",
                ),
            ),
        ),
        migrations.AddIndex(
            model_name="searchlog",
            index=django.contrib.postgres.indexes.GinIndex(fields=["knowledge_base_ids"], name="searchlog_by_kb"),
        ),
    ]
