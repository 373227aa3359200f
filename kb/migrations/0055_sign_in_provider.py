import django.core.validators
import pgtrigger.compiler
from django.db import migrations, models

from kb.migrations import _triggers


class Migration(migrations.Migration):

    dependencies = [
        ('kb', '0054_group_memberships'),
    ]

    operations = [
        migrations.CreateModel(
            name='SignInProvider',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('issuer', models.CharField(max_length=200, verbose_name='address of the issuer')),
                ('client_id', models.CharField(max_length=191, verbose_name='client ID')),
                ('secrets', models.TextField(blank=True, db_default='', default='', editable=False, verbose_name='client secret')),
                ('name', models.CharField(blank=True, max_length=40, verbose_name='name on the button')),
                ('scopes', models.CharField(default='openid profile email', max_length=2000, verbose_name='scopes')),
                ('groups_claim', models.CharField(default='groups', max_length=200, verbose_name='claim of groups')),
                ('allowed_groups', models.CharField(blank=True, max_length=2000, verbose_name='groups that may sign in')),
                ('staff_groups', models.CharField(blank=True, max_length=2000, verbose_name='groups that may use the admin')),
                ('admin_groups', models.CharField(blank=True, max_length=2000, verbose_name='groups of superusers')),
                ('links_email', models.BooleanField(default=False, verbose_name='open accounts by a verified e-mail address')),
                ('hours', models.FloatField(default=12.0, validators=[django.core.validators.MinValueValidator(0.25), django.core.validators.MaxValueValidator(744)], verbose_name='hours of a session')),
                ('allows_private', models.BooleanField(default=False, verbose_name='private address confirmed')),
            ],
            options={
                'verbose_name': 'provider of sign-ins',
                'verbose_name_plural': 'providers of sign-ins',
            },
        ),
        _triggers.AddTrigger(
            model_name='signinprovider',
            trigger=pgtrigger.compiler.Trigger(name='audit_insert', sql=pgtrigger.compiler.UpsertTriggerSql(func="\n    IF (SELECT count(*) FROM new_rows r WHERE TRUE) > 500 THEN\n        PERFORM kb_audit_add('create', 'sign_in_provider', '', '', g.kb, '{}'::jsonb, g.amount)\n            FROM (SELECT NULL::bigint AS kb, count(*) AS amount FROM new_rows r WHERE TRUE GROUP BY 1) g;\n    ELSE\n        PERFORM kb_audit_add('create', 'sign_in_provider', r.id::text, r.issuer, NULL::bigint, kb_audit_changed('{}'::jsonb, jsonb_build_object('issuer', r.issuer, 'client', r.client_id, 'name', r.name, 'scopes', r.scopes, 'groups_claim', r.groups_claim, 'allowed_groups', r.allowed_groups, 'staff_groups', r.staff_groups, 'admin_groups', r.admin_groups, 'links_email', r.links_email, 'hours', r.hours, 'allows_private', r.allows_private)), 1) FROM new_rows r WHERE TRUE;\n    END IF;\n    RETURN NULL;\n", hash='fbe843fd3a245150d3fba73e3180cbc27b3a8cbb', level='STATEMENT', operation='INSERT', pgid='pgtrigger_audit_insert_c1d2e', referencing='REFERENCING NEW TABLE AS new_rows ', table='kb_signinprovider', when='AFTER')),
        ),
        _triggers.AddTrigger(
            model_name='signinprovider',
            trigger=pgtrigger.compiler.Trigger(name='audit_update', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD.issuer IS DISTINCT FROM NEW.issuer OR OLD.client_id IS DISTINCT FROM NEW.client_id OR OLD.name IS DISTINCT FROM NEW.name OR OLD.scopes IS DISTINCT FROM NEW.scopes OR OLD.groups_claim IS DISTINCT FROM NEW.groups_claim OR OLD.allowed_groups IS DISTINCT FROM NEW.allowed_groups OR OLD.staff_groups IS DISTINCT FROM NEW.staff_groups OR OLD.admin_groups IS DISTINCT FROM NEW.admin_groups OR OLD.links_email IS DISTINCT FROM NEW.links_email OR OLD.hours IS DISTINCT FROM NEW.hours OR OLD.allows_private IS DISTINCT FROM NEW.allows_private OR OLD.secrets IS DISTINCT FROM NEW.secrets)', func='\n    PERFORM kb_audit_add(\'update\', \'sign_in_provider\', r.id::text, r.issuer, NULL::bigint, kb_audit_changed(jsonb_build_object(\'issuer\', OLD.issuer, \'client\', OLD.client_id, \'name\', OLD.name, \'scopes\', OLD.scopes, \'groups_claim\', OLD.groups_claim, \'allowed_groups\', OLD.allowed_groups, \'staff_groups\', OLD.staff_groups, \'admin_groups\', OLD.admin_groups, \'links_email\', OLD.links_email, \'hours\', OLD.hours, \'allows_private\', OLD.allows_private), jsonb_build_object(\'issuer\', NEW.issuer, \'client\', NEW.client_id, \'name\', NEW.name, \'scopes\', NEW.scopes, \'groups_claim\', NEW.groups_claim, \'allowed_groups\', NEW.allowed_groups, \'staff_groups\', NEW.staff_groups, \'admin_groups\', NEW.admin_groups, \'links_email\', NEW.links_email, \'hours\', NEW.hours, \'allows_private\', NEW.allows_private)) || CASE WHEN OLD.secrets IS DISTINCT FROM NEW.secrets THEN \'{"secrets": [null, null]}\'::jsonb ELSE \'{}\'::jsonb END, 1) FROM (SELECT NEW.*) r WHERE TRUE;\n    RETURN NULL;\n', hash='d7035abbe78c94877e2bd93659c3ea36e686fa2c', operation='UPDATE', pgid='pgtrigger_audit_update_fb37c', table='kb_signinprovider', when='AFTER')),
        ),
        _triggers.AddTrigger(
            model_name='signinprovider',
            trigger=pgtrigger.compiler.Trigger(name='audit_delete', sql=pgtrigger.compiler.UpsertTriggerSql(func="\n    IF (SELECT count(*) FROM old_rows r WHERE TRUE) > 500 THEN\n        PERFORM kb_audit_add('delete', 'sign_in_provider', '', '', g.kb, '{}'::jsonb, g.amount)\n            FROM (SELECT NULL::bigint AS kb, count(*) AS amount FROM old_rows r WHERE TRUE GROUP BY 1) g;\n    ELSE\n        PERFORM kb_audit_add('delete', 'sign_in_provider', r.id::text, r.issuer, NULL::bigint, kb_audit_changed(jsonb_build_object('issuer', r.issuer, 'client', r.client_id, 'name', r.name, 'scopes', r.scopes, 'groups_claim', r.groups_claim, 'allowed_groups', r.allowed_groups, 'staff_groups', r.staff_groups, 'admin_groups', r.admin_groups, 'links_email', r.links_email, 'hours', r.hours, 'allows_private', r.allows_private), '{}'::jsonb), 1) FROM old_rows r WHERE TRUE;\n    END IF;\n    RETURN NULL;\n", hash='4948feb50e399c19d5bdadb08176dba055b847d8', level='STATEMENT', operation='DELETE', pgid='pgtrigger_audit_delete_bd8a8', referencing='REFERENCING OLD TABLE AS old_rows ', table='kb_signinprovider', when='AFTER')),
        ),
    ]
