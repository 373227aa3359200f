import django.contrib.postgres.fields
import django.db.models.deletion
import pgtrigger.compiler
from django.db import migrations, models

from kb.migrations import _triggers


class Migration(migrations.Migration):

    dependencies = [
        ('kb', '0029_invitations'),
    ]

    operations = [
        migrations.CreateModel(
            name='WebPageChange',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('text_key', models.CharField(db_index=True, max_length=64)),
                ('data', models.BinaryField()),
                ('details', models.JSONField()),
            ],
        ),
        _triggers.RemoveTrigger(
            model_name='websource',
            name='audit_insert',
        ),
        _triggers.RemoveTrigger(
            model_name='websource',
            name='audit_update',
        ),
        _triggers.RemoveTrigger(
            model_name='websource',
            name='audit_delete',
        ),
        migrations.AddField(
            model_name='webpage',
            name='shown_key',
            field=models.CharField(blank=True, db_default='', editable=False, max_length=64),
        ),
        migrations.AddField(
            model_name='webpage',
            name='text_key',
            field=models.CharField(blank=True, db_default='', db_index=True, editable=False, max_length=64),
        ),
        migrations.AddField(
            model_name='websource',
            name='accepted_at',
            field=models.DateTimeField(editable=False, null=True),
        ),
        migrations.AddField(
            model_name='websource',
            name='accepted_keys',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=64), db_default=[], default=list, editable=False, size=None),
        ),
        _triggers.AddTrigger(
            model_name='websource',
            trigger=pgtrigger.compiler.Trigger(name='audit_insert', sql=pgtrigger.compiler.UpsertTriggerSql(func="\n    IF (SELECT count(*) FROM new_rows r WHERE TRUE) > 500 THEN\n        PERFORM kb_audit_add('create', 'web_source', '', '', g.kb, '{}'::jsonb, g.amount)\n            FROM (SELECT r.knowledge_base_id AS kb, count(*) AS amount FROM new_rows r WHERE TRUE GROUP BY 1) g;\n    ELSE\n        PERFORM kb_audit_add('create', 'web_source', r.id::text, r.name, r.knowledge_base_id, kb_audit_changed('{}'::jsonb, jsonb_build_object('name', r.name, 'kind', r.kind, 'url', r.url, 'enabled', r.enabled, 'live', r.live, 'every_minutes', r.every_minutes, 'max_pages', r.max_pages, 'max_depth', r.max_depth, 'include', r.include, 'exclude', r.exclude, 'tags', r.tags, 'accepted_at', r.accepted_at)), 1) FROM new_rows r WHERE TRUE;\n    END IF;\n    RETURN NULL;\n", hash='659f501c11e4a1bb7d22e4133a4375b873ac3f38', level='STATEMENT', operation='INSERT', pgid='pgtrigger_audit_insert_bafc2', referencing='REFERENCING NEW TABLE AS new_rows ', table='kb_websource', when='AFTER')),
        ),
        _triggers.AddTrigger(
            model_name='websource',
            trigger=pgtrigger.compiler.Trigger(name='audit_update', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD.name IS DISTINCT FROM NEW.name OR OLD.kind IS DISTINCT FROM NEW.kind OR OLD.url IS DISTINCT FROM NEW.url OR OLD.enabled IS DISTINCT FROM NEW.enabled OR OLD.live IS DISTINCT FROM NEW.live OR OLD.every_minutes IS DISTINCT FROM NEW.every_minutes OR OLD.max_pages IS DISTINCT FROM NEW.max_pages OR OLD.max_depth IS DISTINCT FROM NEW.max_depth OR OLD.include IS DISTINCT FROM NEW.include OR OLD.exclude IS DISTINCT FROM NEW.exclude OR OLD.tags IS DISTINCT FROM NEW.tags OR OLD.accepted_at IS DISTINCT FROM NEW.accepted_at)', func="\n    PERFORM kb_audit_add('update', 'web_source', r.id::text, r.name, r.knowledge_base_id, kb_audit_changed(jsonb_build_object('name', OLD.name, 'kind', OLD.kind, 'url', OLD.url, 'enabled', OLD.enabled, 'live', OLD.live, 'every_minutes', OLD.every_minutes, 'max_pages', OLD.max_pages, 'max_depth', OLD.max_depth, 'include', OLD.include, 'exclude', OLD.exclude, 'tags', OLD.tags, 'accepted_at', OLD.accepted_at), jsonb_build_object('name', NEW.name, 'kind', NEW.kind, 'url', NEW.url, 'enabled', NEW.enabled, 'live', NEW.live, 'every_minutes', NEW.every_minutes, 'max_pages', NEW.max_pages, 'max_depth', NEW.max_depth, 'include', NEW.include, 'exclude', NEW.exclude, 'tags', NEW.tags, 'accepted_at', NEW.accepted_at)), 1) FROM (SELECT NEW.*) r WHERE TRUE;\n    RETURN NULL;\n", hash='21c27a9f6662c0397c5d7e15e23fed1a19d6113b', operation='UPDATE', pgid='pgtrigger_audit_update_98ba3', table='kb_websource', when='AFTER')),
        ),
        _triggers.AddTrigger(
            model_name='websource',
            trigger=pgtrigger.compiler.Trigger(name='audit_delete', sql=pgtrigger.compiler.UpsertTriggerSql(func="\n    IF (SELECT count(*) FROM old_rows r WHERE TRUE) > 500 THEN\n        PERFORM kb_audit_add('delete', 'web_source', '', '', g.kb, '{}'::jsonb, g.amount)\n            FROM (SELECT r.knowledge_base_id AS kb, count(*) AS amount FROM old_rows r WHERE TRUE GROUP BY 1) g;\n    ELSE\n        PERFORM kb_audit_add('delete', 'web_source', r.id::text, r.name, r.knowledge_base_id, kb_audit_changed(jsonb_build_object('name', r.name, 'kind', r.kind, 'url', r.url, 'enabled', r.enabled, 'live', r.live, 'every_minutes', r.every_minutes, 'max_pages', r.max_pages, 'max_depth', r.max_depth, 'include', r.include, 'exclude', r.exclude, 'tags', r.tags, 'accepted_at', r.accepted_at), '{}'::jsonb), 1) FROM old_rows r WHERE TRUE;\n    END IF;\n    RETURN NULL;\n", hash='553488816e8adb8a3c3b8abba6931b482ca73fbd', level='STATEMENT', operation='DELETE', pgid='pgtrigger_audit_delete_6b06c', referencing='REFERENCING OLD TABLE AS old_rows ', table='kb_websource', when='AFTER')),
        ),
        migrations.AddField(
            model_name='webpagechange',
            name='page',
            field=models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='change', to='kb.webpage'),
        ),
    ]
