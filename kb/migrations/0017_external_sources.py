import django.core.validators
import pgtrigger.compiler
from kb.migrations import _triggers
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('kb', '0016_chunk_work'),
    ]

    operations = [
        migrations.AlterModelOptions(
            name='searchprovider',
            options={'ordering': ('name', 'pk'), 'verbose_name': 'external source', 'verbose_name_plural': 'external sources'},
        ),
        migrations.AddField(
            model_name='searchprovider',
            name='weight',
            field=models.FloatField(blank=True, help_text='How much its ranking counts in the fusion. Blank: as the profile says.', null=True, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(1000)], verbose_name='weight'),
        ),
        migrations.AlterField(
            model_name='searchprovider',
            name='kind',
            field=models.CharField(default='vertex_ai_search', max_length=40, verbose_name='kind'),
        ),
        migrations.AlterField(
            model_name='websource',
            name='live',
            field=models.BooleanField(default=False, help_text='Queries read it too, as a channel of its own. Of a page or a feed only.', verbose_name='ask at query time'),
        ),
        migrations.RunSQL(
            "UPDATE kb_searchprovider SET kind = 'vertex_ai_search' WHERE kind = 'vertex'",
            "UPDATE kb_searchprovider SET kind = 'vertex' WHERE kind = 'vertex_ai_search'",
        ),
        _triggers.AddTrigger(
            model_name='websource',
            trigger=pgtrigger.compiler.Trigger(name='content_insert', sql=pgtrigger.compiler.UpsertTriggerSql(func="\n    IF EXISTS (SELECT knowledge_base_id FROM new_rows WHERE live) THEN\n        PERFORM 1 FROM kb_versions v WHERE v.knowledge_base_id IN (SELECT knowledge_base_id FROM new_rows WHERE live)\n            ORDER BY v.knowledge_base_id FOR UPDATE;\n        UPDATE kb_versions v SET content_version = nextval('kb_version_seq')\n            WHERE v.knowledge_base_id IN (SELECT knowledge_base_id FROM new_rows WHERE live);\n    END IF;\n RETURN NULL;", hash='375a152eb36383805b526b3cd501a99f8863abec', level='STATEMENT', operation='INSERT', pgid='pgtrigger_content_insert_32122', referencing='REFERENCING NEW TABLE AS new_rows ', table='kb_websource', when='AFTER')),
        ),
        _triggers.AddTrigger(
            model_name='websource',
            trigger=pgtrigger.compiler.Trigger(name='content_update', sql=pgtrigger.compiler.UpsertTriggerSql(func="\n    IF EXISTS (\n    SELECT knowledge_base_id AS knowledge_base_id FROM (\n        (SELECT knowledge_base_id, id, name, kind, url, enabled, live, include, exclude, max_pages FROM new_rows EXCEPT SELECT knowledge_base_id, id, name, kind, url, enabled, live, include, exclude, max_pages FROM old_rows)\n        UNION ALL\n        (SELECT knowledge_base_id, id, name, kind, url, enabled, live, include, exclude, max_pages FROM old_rows EXCEPT SELECT knowledge_base_id, id, name, kind, url, enabled, live, include, exclude, max_pages FROM new_rows)) changed) THEN\n        PERFORM 1 FROM kb_versions v WHERE v.knowledge_base_id IN (\n    SELECT knowledge_base_id AS knowledge_base_id FROM (\n        (SELECT knowledge_base_id, id, name, kind, url, enabled, live, include, exclude, max_pages FROM new_rows EXCEPT SELECT knowledge_base_id, id, name, kind, url, enabled, live, include, exclude, max_pages FROM old_rows)\n        UNION ALL\n        (SELECT knowledge_base_id, id, name, kind, url, enabled, live, include, exclude, max_pages FROM old_rows EXCEPT SELECT knowledge_base_id, id, name, kind, url, enabled, live, include, exclude, max_pages FROM new_rows)) changed)\n            ORDER BY v.knowledge_base_id FOR UPDATE;\n        UPDATE kb_versions v SET content_version = nextval('kb_version_seq')\n            WHERE v.knowledge_base_id IN (\n    SELECT knowledge_base_id AS knowledge_base_id FROM (\n        (SELECT knowledge_base_id, id, name, kind, url, enabled, live, include, exclude, max_pages FROM new_rows EXCEPT SELECT knowledge_base_id, id, name, kind, url, enabled, live, include, exclude, max_pages FROM old_rows)\n        UNION ALL\n        (SELECT knowledge_base_id, id, name, kind, url, enabled, live, include, exclude, max_pages FROM old_rows EXCEPT SELECT knowledge_base_id, id, name, kind, url, enabled, live, include, exclude, max_pages FROM new_rows)) changed);\n    END IF;\n RETURN NULL;", hash='0484ae22018eec98ce51514283b7eb707ac95905', level='STATEMENT', operation='UPDATE', pgid='pgtrigger_content_update_16b92', referencing='REFERENCING OLD TABLE AS old_rows  NEW TABLE AS new_rows ', table='kb_websource', when='AFTER')),
        ),
        _triggers.AddTrigger(
            model_name='websource',
            trigger=pgtrigger.compiler.Trigger(name='content_delete', sql=pgtrigger.compiler.UpsertTriggerSql(func="\n    IF EXISTS (SELECT knowledge_base_id FROM old_rows WHERE live) THEN\n        PERFORM 1 FROM kb_versions v WHERE v.knowledge_base_id IN (SELECT knowledge_base_id FROM old_rows WHERE live)\n            ORDER BY v.knowledge_base_id FOR UPDATE;\n        UPDATE kb_versions v SET content_version = nextval('kb_version_seq')\n            WHERE v.knowledge_base_id IN (SELECT knowledge_base_id FROM old_rows WHERE live);\n    END IF;\n RETURN NULL;", hash='c8e23c114b850afc515bdf9058217a9a29b1c45d', level='STATEMENT', operation='DELETE', pgid='pgtrigger_content_delete_09157', referencing='REFERENCING OLD TABLE AS old_rows ', table='kb_websource', when='AFTER')),
        ),
    ]
