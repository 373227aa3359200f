import django.db.models.deletion
import pgtrigger.compiler
from django.conf import settings
from django.db import migrations, models

from kb.migrations import _triggers


class Migration(migrations.Migration):

    dependencies = [
        ('kb', '0044_hub_indexes'),
    ]

    operations = [
        migrations.CreateModel(
            name='ProviderModel',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('role', models.CharField(choices=[('embedding', 'embedding'), ('rerank', 'reranking'), ('chat', 'chat')], max_length=12, verbose_name='role')),
                ('name', models.CharField(max_length=120, verbose_name='name')),
                ('slug', models.CharField(editable=False, max_length=100, unique=True)),
                ('provider', models.CharField(max_length=40, verbose_name='provider')),
                ('base_url', models.CharField(blank=True, db_default='', max_length=2000, verbose_name='address')),
                ('model', models.CharField(max_length=200, verbose_name='model')),
                ('secrets', models.TextField(blank=True, db_default='', default='', editable=False, verbose_name='API key')),
                ('dimension', models.PositiveIntegerField(editable=False, null=True, verbose_name='dimension')),
                ('options', models.JSONField(blank=True, db_default={}, default=dict, verbose_name='options')),
                ('allows_private', models.BooleanField(db_default=False, default=False, verbose_name='private address confirmed')),
                ('is_default', models.BooleanField(db_default=False, default=False, editable=False, verbose_name='default')),
                ('is_enabled', models.BooleanField(db_default=True, default=True, verbose_name='enabled')),
                ('variable', models.CharField(blank=True, db_default='', default='', editable=False, max_length=40)),
                ('tested_at', models.DateTimeField(editable=False, null=True, verbose_name='last test')),
                ('test_ok', models.BooleanField(editable=False, null=True)),
                ('test_latency_ms', models.PositiveIntegerField(editable=False, null=True)),
                ('test_message', models.TextField(blank=True, db_default='', default='', editable=False)),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('updated_at', models.DateTimeField(auto_now=True, verbose_name='updated')),
                ('created_by', models.ForeignKey(editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL, verbose_name='by')),
            ],
            options={
                'verbose_name': 'model',
                'verbose_name_plural': 'models',
                'ordering': ('role', 'name', 'pk'),
                'constraints': [models.UniqueConstraint(condition=models.Q(('variable', '')), fields=('role', 'name'), name='model_name_per_role'), models.UniqueConstraint(condition=models.Q(('is_default', True)), fields=('role',), name='one_default_per_role')],
            },
        ),
        _triggers.AddTrigger(
            model_name='providermodel',
            trigger=pgtrigger.compiler.Trigger(name='audit_insert', sql=pgtrigger.compiler.UpsertTriggerSql(func="\n    IF (SELECT count(*) FROM new_rows r WHERE r.variable = '') > 500 THEN\n        PERFORM kb_audit_add('create', 'provider_model', '', '', g.kb, '{}'::jsonb, g.amount)\n            FROM (SELECT NULL::bigint AS kb, count(*) AS amount FROM new_rows r WHERE r.variable = '' GROUP BY 1) g;\n    ELSE\n        PERFORM kb_audit_add('create', 'provider_model', r.id::text, r.name, NULL::bigint, kb_audit_changed('{}'::jsonb, jsonb_build_object('role', r.role, 'name', r.name, 'provider', r.provider, 'base_url', r.base_url, 'model', r.model, 'options', r.options, 'allows_private', r.allows_private, 'is_default', r.is_default, 'is_enabled', r.is_enabled)), 1) FROM new_rows r WHERE r.variable = '';\n    END IF;\n    RETURN NULL;\n", hash='3c7dec954a772f9c91d1176a87d74a4947c1cf44', level='STATEMENT', operation='INSERT', pgid='pgtrigger_audit_insert_cba17', referencing='REFERENCING NEW TABLE AS new_rows ', table='kb_providermodel', when='AFTER')),
        ),
        _triggers.AddTrigger(
            model_name='providermodel',
            trigger=pgtrigger.compiler.Trigger(name='audit_update', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD.role IS DISTINCT FROM NEW.role OR OLD.name IS DISTINCT FROM NEW.name OR OLD.provider IS DISTINCT FROM NEW.provider OR OLD.base_url IS DISTINCT FROM NEW.base_url OR OLD.model IS DISTINCT FROM NEW.model OR OLD.options IS DISTINCT FROM NEW.options OR OLD.allows_private IS DISTINCT FROM NEW.allows_private OR OLD.is_default IS DISTINCT FROM NEW.is_default OR OLD.is_enabled IS DISTINCT FROM NEW.is_enabled OR OLD.secrets IS DISTINCT FROM NEW.secrets)', func='\n    PERFORM kb_audit_add(\'update\', \'provider_model\', r.id::text, r.name, NULL::bigint, kb_audit_changed(jsonb_build_object(\'role\', OLD.role, \'name\', OLD.name, \'provider\', OLD.provider, \'base_url\', OLD.base_url, \'model\', OLD.model, \'options\', OLD.options, \'allows_private\', OLD.allows_private, \'is_default\', OLD.is_default, \'is_enabled\', OLD.is_enabled), jsonb_build_object(\'role\', NEW.role, \'name\', NEW.name, \'provider\', NEW.provider, \'base_url\', NEW.base_url, \'model\', NEW.model, \'options\', NEW.options, \'allows_private\', NEW.allows_private, \'is_default\', NEW.is_default, \'is_enabled\', NEW.is_enabled)) || CASE WHEN OLD.secrets IS DISTINCT FROM NEW.secrets THEN \'{"secrets": [null, null]}\'::jsonb ELSE \'{}\'::jsonb END, 1) FROM (SELECT NEW.*) r WHERE r.variable = \'\';\n    RETURN NULL;\n', hash='84ac74c1ae7a88bf9edd52002595322306ad1a63', operation='UPDATE', pgid='pgtrigger_audit_update_2d645', table='kb_providermodel', when='AFTER')),
        ),
        _triggers.AddTrigger(
            model_name='providermodel',
            trigger=pgtrigger.compiler.Trigger(name='audit_delete', sql=pgtrigger.compiler.UpsertTriggerSql(func="\n    IF (SELECT count(*) FROM old_rows r WHERE r.variable = '') > 500 THEN\n        PERFORM kb_audit_add('delete', 'provider_model', '', '', g.kb, '{}'::jsonb, g.amount)\n            FROM (SELECT NULL::bigint AS kb, count(*) AS amount FROM old_rows r WHERE r.variable = '' GROUP BY 1) g;\n    ELSE\n        PERFORM kb_audit_add('delete', 'provider_model', r.id::text, r.name, NULL::bigint, kb_audit_changed(jsonb_build_object('role', r.role, 'name', r.name, 'provider', r.provider, 'base_url', r.base_url, 'model', r.model, 'options', r.options, 'allows_private', r.allows_private, 'is_default', r.is_default, 'is_enabled', r.is_enabled), '{}'::jsonb), 1) FROM old_rows r WHERE r.variable = '';\n    END IF;\n    RETURN NULL;\n", hash='6f667811cdd91fa50b060de026ad12a8733ef5bc', level='STATEMENT', operation='DELETE', pgid='pgtrigger_audit_delete_da613', referencing='REFERENCING OLD TABLE AS old_rows ', table='kb_providermodel', when='AFTER')),
        ),
    ]
