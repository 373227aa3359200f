"""Sources of every kind in place of those of the web.

Tables and columns keep their names: the release before goes on with them while this one is put in its place. So a model and a
field are renamed in the state alone.
"""

import django.core.validators
import django.db.models.deletion
import pgtrigger.compiler
from django.db import migrations, models

from kb.migrations import _triggers


class Migration(migrations.Migration):

    dependencies = [
        ("kb", "0038_pictures"),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RenameModel("WebSource", "Source"),
                migrations.AlterModelTable("Source", "kb_websource"),
                migrations.RenameModel("WebPage", "SourceItem"),
                migrations.AlterModelTable("SourceItem", "kb_webpage"),
                migrations.RenameModel("WebPageChange", "SourceItemChange"),
                migrations.AlterModelTable("SourceItemChange", "kb_webpagechange"),
                migrations.RenameField("SourceItem", "url_hash", "key_hash"),
                migrations.AlterField(
                    "SourceItem", "key_hash", models.CharField(db_column="url_hash", editable=False, max_length=64)
                ),
                migrations.RenameField("SourceItemChange", "page", "item"),
                migrations.AlterField(
                    "SourceItemChange",
                    "item",
                    models.OneToOneField(
                        db_column="page_id", on_delete=models.CASCADE, related_name="change", to="kb.sourceitem"
                    ),
                ),
                migrations.AlterField(
                    model_name='source',
                    name='knowledge_base',
                    field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='sources', to='kb.knowledgebase', verbose_name='knowledge base'),
                ),
                migrations.AlterField(
                    model_name='source',
                    name='every_minutes',
                    field=models.PositiveIntegerField(blank=True, help_text='Blank: only when somebody asks for it.', null=True, validators=[django.core.validators.MinValueValidator(5), django.core.validators.MaxValueValidator(129600)], verbose_name='refresh interval (minutes)'),
                ),
                migrations.AlterField(
                    model_name='sourceitem',
                    name='source',
                    field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='items', to='kb.source', verbose_name='source'),
                ),
                migrations.RemoveConstraint(
                    model_name='sourceitem',
                    name='web_page_once',
                ),
                migrations.AddConstraint(
                    model_name='sourceitem',
                    constraint=models.UniqueConstraint(fields=('source', 'key_hash'), name='web_page_once'),
                ),
            ],
        ),
        migrations.CreateModel(
            name='SourceRun',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('status', models.CharField(choices=[('never', 'not run yet'), ('waiting', 'waiting'), ('running', 'running'), ('done', 'done'), ('failed', 'failed'), ('cancelled', 'cancelled')], max_length=12, verbose_name='status')),
                ('counts', models.JSONField(default=dict)),
                ('error_code', models.CharField(blank=True, max_length=40)),
                ('error', models.TextField(blank=True, verbose_name='error')),
                ('error_params', models.JSONField(default=dict)),
                ('started_at', models.DateTimeField(null=True, verbose_name='began')),
                ('ended_at', models.DateTimeField(verbose_name='ended')),
            ],
            options={
                'ordering': ('-pk',),
            },
        ),
        migrations.AlterModelOptions(
            name='source',
            options={'ordering': ('name', 'pk'), 'verbose_name': 'source', 'verbose_name_plural': 'sources'},
        ),
        migrations.AlterModelOptions(
            name='sourceitem',
            options={'ordering': ('url', 'key'), 'verbose_name': 'item of a source', 'verbose_name_plural': 'items of sources'},
        ),
        _triggers.RemoveTrigger(
            model_name='source',
            name='content_insert',
        ),
        _triggers.RemoveTrigger(
            model_name='source',
            name='content_update',
        ),
        _triggers.RemoveTrigger(
            model_name='source',
            name='content_delete',
        ),
        _triggers.RemoveTrigger(
            model_name='source',
            name='audit_insert',
        ),
        _triggers.RemoveTrigger(
            model_name='source',
            name='audit_update',
        ),
        _triggers.RemoveTrigger(
            model_name='source',
            name='audit_delete',
        ),
        migrations.AddField(
            model_name='source',
            name='failures',
            field=models.PositiveSmallIntegerField(db_default=0, default=0, editable=False),
        ),
        migrations.AddField(
            model_name='source',
            name='max_share',
            field=models.PositiveSmallIntegerField(db_default=25, default=25, help_text='A run that would delete this share of its documents or more, and two at least, deletes none and asks.', validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(100)], verbose_name='share deleted without confirmation (%)'),
        ),
        migrations.AddField(
            model_name='source',
            name='paused',
            field=models.BooleanField(db_default=False, default=False, editable=False, verbose_name='paused'),
        ),
        migrations.AddField(
            model_name='source',
            name='progress',
            field=models.JSONField(db_default={}, default=dict, editable=False),
        ),
        migrations.AddField(
            model_name='source',
            name='run_count',
            field=models.PositiveIntegerField(db_default=0, default=0, editable=False),
        ),
        migrations.AddField(
            model_name='source',
            name='secrets',
            field=models.TextField(blank=True, db_default='', default='', editable=False, verbose_name='secrets'),
        ),
        migrations.AddField(
            model_name='source',
            name='settings',
            field=models.JSONField(blank=True, db_default={}, default=dict, verbose_name='settings'),
        ),
        migrations.AddField(
            model_name='sourceitem',
            name='digest',
            field=models.CharField(blank=True, db_default='', default='', max_length=64),
        ),
        migrations.AddField(
            model_name='sourceitem',
            name='key',
            field=models.TextField(blank=True, db_default='', default='', verbose_name='path'),
        ),
        migrations.AddField(
            model_name='sourceitem',
            name='name',
            field=models.CharField(blank=True, db_default='', default='', max_length=1000),
        ),
        migrations.AddField(
            model_name='sourceitem',
            name='seen_at',
            field=models.DateTimeField(editable=False, null=True),
        ),
        migrations.AddField(
            model_name='sourceitem',
            name='size',
            field=models.BigIntegerField(null=True, verbose_name='size'),
        ),
        migrations.AlterField(
            model_name='source',
            name='kind',
            field=models.CharField(choices=[('page', 'page'), ('sitemap', 'sitemap'), ('crawl', 'crawl'), ('feed', 'RSS or Atom feed'), ('folder', 'folder on the server'), ('s3', 'S3 bucket'), ('webdav', 'WebDAV folder'), ('git', 'Git repository'), ('push', 'sync by API')], default='page', max_length=8, verbose_name='kind'),
        ),
        migrations.AlterField(
            model_name='source',
            name='url',
            field=models.CharField(blank=True, max_length=2000, verbose_name='address'),
        ),
        migrations.AlterField(
            model_name='sourceitem',
            name='document',
            field=models.OneToOneField(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='source_item', to='kb.document', verbose_name='document'),
        ),
        migrations.AlterField(
            model_name='sourceitem',
            name='url',
            field=models.CharField(blank=True, max_length=2000, verbose_name='address'),
        ),
        migrations.AlterField(
            model_name='sourceitem',
            name='version',
            field=models.CharField(blank=True, db_default='', max_length=500),
        ),
        migrations.AddIndex(
            model_name='sourceitem',
            index=models.Index(fields=['source', 'digest'], name='source_item_by_digest'),
        ),
        _triggers.AddTrigger(
            model_name='source',
            trigger=pgtrigger.compiler.Trigger(name='content_insert', sql=pgtrigger.compiler.UpsertTriggerSql(func="\n    IF EXISTS (SELECT knowledge_base_id FROM new_rows WHERE live) THEN\n        PERFORM 1 FROM kb_versions v WHERE v.knowledge_base_id IN (SELECT knowledge_base_id FROM new_rows WHERE live)\n            ORDER BY v.knowledge_base_id FOR UPDATE;\n        UPDATE kb_versions v SET content_version = nextval('kb_version_seq')\n            WHERE v.knowledge_base_id IN (SELECT knowledge_base_id FROM new_rows WHERE live);\n    END IF;\n RETURN NULL;", hash='9b49b1dc6ccd2b2fd485a884e0efbb98338dfdcc', level='STATEMENT', operation='INSERT', pgid='pgtrigger_content_insert_b8104', referencing='REFERENCING NEW TABLE AS new_rows ', table='kb_websource', when='AFTER')),
        ),
        _triggers.AddTrigger(
            model_name='source',
            trigger=pgtrigger.compiler.Trigger(name='content_update', sql=pgtrigger.compiler.UpsertTriggerSql(func="\n    IF EXISTS (\n    SELECT knowledge_base_id AS knowledge_base_id FROM (\n        (SELECT knowledge_base_id, id, name, kind, url, enabled, live, include, exclude, max_pages FROM new_rows EXCEPT SELECT knowledge_base_id, id, name, kind, url, enabled, live, include, exclude, max_pages FROM old_rows)\n        UNION ALL\n        (SELECT knowledge_base_id, id, name, kind, url, enabled, live, include, exclude, max_pages FROM old_rows EXCEPT SELECT knowledge_base_id, id, name, kind, url, enabled, live, include, exclude, max_pages FROM new_rows)) changed) THEN\n        PERFORM 1 FROM kb_versions v WHERE v.knowledge_base_id IN (\n    SELECT knowledge_base_id AS knowledge_base_id FROM (\n        (SELECT knowledge_base_id, id, name, kind, url, enabled, live, include, exclude, max_pages FROM new_rows EXCEPT SELECT knowledge_base_id, id, name, kind, url, enabled, live, include, exclude, max_pages FROM old_rows)\n        UNION ALL\n        (SELECT knowledge_base_id, id, name, kind, url, enabled, live, include, exclude, max_pages FROM old_rows EXCEPT SELECT knowledge_base_id, id, name, kind, url, enabled, live, include, exclude, max_pages FROM new_rows)) changed)\n            ORDER BY v.knowledge_base_id FOR UPDATE;\n        UPDATE kb_versions v SET content_version = nextval('kb_version_seq')\n            WHERE v.knowledge_base_id IN (\n    SELECT knowledge_base_id AS knowledge_base_id FROM (\n        (SELECT knowledge_base_id, id, name, kind, url, enabled, live, include, exclude, max_pages FROM new_rows EXCEPT SELECT knowledge_base_id, id, name, kind, url, enabled, live, include, exclude, max_pages FROM old_rows)\n        UNION ALL\n        (SELECT knowledge_base_id, id, name, kind, url, enabled, live, include, exclude, max_pages FROM old_rows EXCEPT SELECT knowledge_base_id, id, name, kind, url, enabled, live, include, exclude, max_pages FROM new_rows)) changed);\n    END IF;\n RETURN NULL;", hash='386bd28040d57f7effc6807f55437ad7f1919063', level='STATEMENT', operation='UPDATE', pgid='pgtrigger_content_update_45da7', referencing='REFERENCING OLD TABLE AS old_rows  NEW TABLE AS new_rows ', table='kb_websource', when='AFTER')),
        ),
        _triggers.AddTrigger(
            model_name='source',
            trigger=pgtrigger.compiler.Trigger(name='content_delete', sql=pgtrigger.compiler.UpsertTriggerSql(func="\n    IF EXISTS (SELECT knowledge_base_id FROM old_rows WHERE live) THEN\n        PERFORM 1 FROM kb_versions v WHERE v.knowledge_base_id IN (SELECT knowledge_base_id FROM old_rows WHERE live)\n            ORDER BY v.knowledge_base_id FOR UPDATE;\n        UPDATE kb_versions v SET content_version = nextval('kb_version_seq')\n            WHERE v.knowledge_base_id IN (SELECT knowledge_base_id FROM old_rows WHERE live);\n    END IF;\n RETURN NULL;", hash='d055591fd773d16fc3850d5410a86f4ff2cb9b5c', level='STATEMENT', operation='DELETE', pgid='pgtrigger_content_delete_8a080', referencing='REFERENCING OLD TABLE AS old_rows ', table='kb_websource', when='AFTER')),
        ),
        _triggers.AddTrigger(
            model_name='source',
            trigger=pgtrigger.compiler.Trigger(name='audit_insert', sql=pgtrigger.compiler.UpsertTriggerSql(func="\n    IF (SELECT count(*) FROM new_rows r WHERE TRUE) > 500 THEN\n        PERFORM kb_audit_add('create', 'source', '', '', g.kb, '{}'::jsonb, g.amount)\n            FROM (SELECT r.knowledge_base_id AS kb, count(*) AS amount FROM new_rows r WHERE TRUE GROUP BY 1) g;\n    ELSE\n        PERFORM kb_audit_add('create', 'source', r.id::text, r.name, r.knowledge_base_id, kb_audit_changed('{}'::jsonb, jsonb_build_object('name', r.name, 'kind', r.kind, 'url', r.url, 'settings', r.settings, 'enabled', r.enabled, 'paused', r.paused, 'live', r.live, 'every_minutes', r.every_minutes, 'max_share', r.max_share, 'max_pages', r.max_pages, 'max_depth', r.max_depth, 'include', r.include, 'exclude', r.exclude, 'tags', r.tags, 'accepted_at', r.accepted_at)), 1) FROM new_rows r WHERE TRUE;\n    END IF;\n    RETURN NULL;\n", hash='3c444f494e547db1fde6f4c8be2f42ad6337fa3e', level='STATEMENT', operation='INSERT', pgid='pgtrigger_audit_insert_b3580', referencing='REFERENCING NEW TABLE AS new_rows ', table='kb_websource', when='AFTER')),
        ),
        _triggers.AddTrigger(
            model_name='source',
            trigger=pgtrigger.compiler.Trigger(name='audit_update', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD.name IS DISTINCT FROM NEW.name OR OLD.kind IS DISTINCT FROM NEW.kind OR OLD.url IS DISTINCT FROM NEW.url OR OLD.settings IS DISTINCT FROM NEW.settings OR OLD.enabled IS DISTINCT FROM NEW.enabled OR OLD.paused IS DISTINCT FROM NEW.paused OR OLD.live IS DISTINCT FROM NEW.live OR OLD.every_minutes IS DISTINCT FROM NEW.every_minutes OR OLD.max_share IS DISTINCT FROM NEW.max_share OR OLD.max_pages IS DISTINCT FROM NEW.max_pages OR OLD.max_depth IS DISTINCT FROM NEW.max_depth OR OLD.include IS DISTINCT FROM NEW.include OR OLD.exclude IS DISTINCT FROM NEW.exclude OR OLD.tags IS DISTINCT FROM NEW.tags OR OLD.accepted_at IS DISTINCT FROM NEW.accepted_at OR OLD.secrets IS DISTINCT FROM NEW.secrets)', func='\n    PERFORM kb_audit_add(\'update\', \'source\', r.id::text, r.name, r.knowledge_base_id, kb_audit_changed(jsonb_build_object(\'name\', OLD.name, \'kind\', OLD.kind, \'url\', OLD.url, \'settings\', OLD.settings, \'enabled\', OLD.enabled, \'paused\', OLD.paused, \'live\', OLD.live, \'every_minutes\', OLD.every_minutes, \'max_share\', OLD.max_share, \'max_pages\', OLD.max_pages, \'max_depth\', OLD.max_depth, \'include\', OLD.include, \'exclude\', OLD.exclude, \'tags\', OLD.tags, \'accepted_at\', OLD.accepted_at), jsonb_build_object(\'name\', NEW.name, \'kind\', NEW.kind, \'url\', NEW.url, \'settings\', NEW.settings, \'enabled\', NEW.enabled, \'paused\', NEW.paused, \'live\', NEW.live, \'every_minutes\', NEW.every_minutes, \'max_share\', NEW.max_share, \'max_pages\', NEW.max_pages, \'max_depth\', NEW.max_depth, \'include\', NEW.include, \'exclude\', NEW.exclude, \'tags\', NEW.tags, \'accepted_at\', NEW.accepted_at)) || CASE WHEN OLD.secrets IS DISTINCT FROM NEW.secrets THEN \'{"secrets": [null, null]}\'::jsonb ELSE \'{}\'::jsonb END, 1) FROM (SELECT NEW.*) r WHERE TRUE;\n    RETURN NULL;\n', hash='fb709c48883fc7ac193661af1446a99d6a11c21a', operation='UPDATE', pgid='pgtrigger_audit_update_0df00', table='kb_websource', when='AFTER')),
        ),
        _triggers.AddTrigger(
            model_name='source',
            trigger=pgtrigger.compiler.Trigger(name='audit_delete', sql=pgtrigger.compiler.UpsertTriggerSql(func="\n    IF (SELECT count(*) FROM old_rows r WHERE TRUE) > 500 THEN\n        PERFORM kb_audit_add('delete', 'source', '', '', g.kb, '{}'::jsonb, g.amount)\n            FROM (SELECT r.knowledge_base_id AS kb, count(*) AS amount FROM old_rows r WHERE TRUE GROUP BY 1) g;\n    ELSE\n        PERFORM kb_audit_add('delete', 'source', r.id::text, r.name, r.knowledge_base_id, kb_audit_changed(jsonb_build_object('name', r.name, 'kind', r.kind, 'url', r.url, 'settings', r.settings, 'enabled', r.enabled, 'paused', r.paused, 'live', r.live, 'every_minutes', r.every_minutes, 'max_share', r.max_share, 'max_pages', r.max_pages, 'max_depth', r.max_depth, 'include', r.include, 'exclude', r.exclude, 'tags', r.tags, 'accepted_at', r.accepted_at), '{}'::jsonb), 1) FROM old_rows r WHERE TRUE;\n    END IF;\n    RETURN NULL;\n", hash='795116c9264928690097d2ac1b1a75e6d4bced21', level='STATEMENT', operation='DELETE', pgid='pgtrigger_audit_delete_09111', referencing='REFERENCING OLD TABLE AS old_rows ', table='kb_websource', when='AFTER')),
        ),
        migrations.AddField(
            model_name='sourcerun',
            name='source',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='runs', to='kb.source', verbose_name='source'),
        ),
        migrations.RunSQL(
            "UPDATE kb_auditentry SET object_type = 'source' WHERE object_type = 'web_source'",
            "UPDATE kb_auditentry SET object_type = 'web_source' WHERE object_type = 'source'",
        ),
    ]
