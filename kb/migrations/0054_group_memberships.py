import django.db.models.deletion
import pgtrigger.compiler
from django.db import migrations, models

from kb.migrations import _triggers


class Migration(migrations.Migration):

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
        ('kb', '0053_search_log_by_assistant'),
    ]

    operations = [
        migrations.CreateModel(
            name='UserGroup',
            fields=[
            ],
            options={
                'proxy': True,
                'indexes': [],
                'constraints': [],
            },
            bases=('kb.user_groups',),
        ),
        migrations.CreateModel(
            name='GroupMembership',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('role', models.CharField(choices=[('viewer', 'viewer'), ('editor', 'editor'), ('owner', 'owner')], default='viewer', max_length=8, verbose_name='role')),
                ('group', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='knowledge_bases', to='auth.group', verbose_name='group')),
                ('knowledge_base', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='group_memberships', to='kb.knowledgebase')),
            ],
            options={
                'verbose_name': 'membership of a group',
                'verbose_name_plural': 'memberships of groups',
            },
        ),
        _triggers.AddTrigger(
            model_name='usergroup',
            trigger=pgtrigger.compiler.Trigger(name='audit_insert', sql=pgtrigger.compiler.UpsertTriggerSql(func="\n        PERFORM kb_audit_add('bind', 'user', r.user_id::text, u.username, NULL::bigint,\n            jsonb_build_object('group', jsonb_build_array(NULL, g.name)), 1)\n            FROM new_rows r JOIN kb_user u ON u.id = r.user_id JOIN auth_group g ON g.id = r.group_id;\n        RETURN NULL;\n        ", hash='90ff20c61f9d1b7350710e3bd59d69ccff1c6cbd', level='STATEMENT', operation='INSERT', pgid='pgtrigger_audit_insert_f81e3', referencing='REFERENCING NEW TABLE AS new_rows ', table='kb_user_groups', when='AFTER')),
        ),
        _triggers.AddTrigger(
            model_name='usergroup',
            trigger=pgtrigger.compiler.Trigger(name='audit_delete', sql=pgtrigger.compiler.UpsertTriggerSql(func="\n        PERFORM kb_audit_add('unbind', 'user', r.user_id::text, u.username, NULL::bigint,\n            jsonb_build_object('group', jsonb_build_array(g.name, NULL)), 1)\n            FROM old_rows r JOIN kb_user u ON u.id = r.user_id JOIN auth_group g ON g.id = r.group_id;\n        RETURN NULL;\n        ", hash='d1f909f7fd1ecc61601a4220a9f75cf03b2d02bf', level='STATEMENT', operation='DELETE', pgid='pgtrigger_audit_delete_4579c', referencing='REFERENCING OLD TABLE AS old_rows ', table='kb_user_groups', when='AFTER')),
        ),
        migrations.AddConstraint(
            model_name='groupmembership',
            constraint=models.UniqueConstraint(fields=('knowledge_base', 'group'), name='group_membership_once'),
        ),
        _triggers.AddTrigger(
            model_name='groupmembership',
            trigger=pgtrigger.compiler.Trigger(name='audit_insert', sql=pgtrigger.compiler.UpsertTriggerSql(func="\n    IF (SELECT count(*) FROM new_rows r WHERE TRUE) > 500 THEN\n        PERFORM kb_audit_add('create', 'group_membership', '', '', g.kb, '{}'::jsonb, g.amount)\n            FROM (SELECT r.knowledge_base_id AS kb, count(*) AS amount FROM new_rows r WHERE TRUE GROUP BY 1) g;\n    ELSE\n        PERFORM kb_audit_add('create', 'group_membership', r.id::text, (SELECT g.name FROM auth_group g WHERE g.id = r.group_id), r.knowledge_base_id, kb_audit_changed('{}'::jsonb, jsonb_build_object('role', r.role)), 1) FROM new_rows r WHERE TRUE;\n    END IF;\n    RETURN NULL;\n", hash='38a3d0456e3cac5e5ade34fbfa253a53a859f69a', level='STATEMENT', operation='INSERT', pgid='pgtrigger_audit_insert_36cc7', referencing='REFERENCING NEW TABLE AS new_rows ', table='kb_groupmembership', when='AFTER')),
        ),
        _triggers.AddTrigger(
            model_name='groupmembership',
            trigger=pgtrigger.compiler.Trigger(name='audit_update', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD.role IS DISTINCT FROM NEW.role)', func="\n    PERFORM kb_audit_add('update', 'group_membership', r.id::text, (SELECT g.name FROM auth_group g WHERE g.id = r.group_id), r.knowledge_base_id, kb_audit_changed(jsonb_build_object('role', OLD.role), jsonb_build_object('role', NEW.role)), 1) FROM (SELECT NEW.*) r WHERE TRUE;\n    RETURN NULL;\n", hash='c4fb06a2a8588b2046286173a17344a82fbe7066', operation='UPDATE', pgid='pgtrigger_audit_update_8c2a1', table='kb_groupmembership', when='AFTER')),
        ),
        _triggers.AddTrigger(
            model_name='groupmembership',
            trigger=pgtrigger.compiler.Trigger(name='audit_delete', sql=pgtrigger.compiler.UpsertTriggerSql(func="\n    IF (SELECT count(*) FROM old_rows r WHERE TRUE) > 500 THEN\n        PERFORM kb_audit_add('delete', 'group_membership', '', '', g.kb, '{}'::jsonb, g.amount)\n            FROM (SELECT r.knowledge_base_id AS kb, count(*) AS amount FROM old_rows r WHERE TRUE GROUP BY 1) g;\n    ELSE\n        PERFORM kb_audit_add('delete', 'group_membership', r.id::text, (SELECT g.name FROM auth_group g WHERE g.id = r.group_id), r.knowledge_base_id, kb_audit_changed(jsonb_build_object('role', r.role), '{}'::jsonb), 1) FROM old_rows r WHERE TRUE;\n    END IF;\n    RETURN NULL;\n", hash='0d6bad368310778f6b62050c4fc6b05060526a83', level='STATEMENT', operation='DELETE', pgid='pgtrigger_audit_delete_d3b4f', referencing='REFERENCING OLD TABLE AS old_rows ', table='kb_groupmembership', when='AFTER')),
        ),
    ]
