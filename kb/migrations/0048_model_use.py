from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('kb', '0047_model_downloads'),
    ]

    operations = [
        migrations.CreateModel(
            name='ModelUse',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('day', models.DateField(verbose_name='day')),
                ('role', models.CharField(max_length=12, verbose_name='role')),
                ('model', models.CharField(max_length=200, verbose_name='model')),
                ('knowledge_base_id', models.BigIntegerField(default=0)),
                ('requests', models.BigIntegerField(default=0, verbose_name='requests')),
                ('input_tokens', models.BigIntegerField(default=0, verbose_name='tokens read')),
                ('output_tokens', models.BigIntegerField(default=0, verbose_name='tokens written')),
                ('estimated_tokens', models.BigIntegerField(default=0, verbose_name='tokens estimated')),
            ],
            options={
                'verbose_name': 'use of a model',
                'verbose_name_plural': 'use of models',
                'constraints': [models.UniqueConstraint(fields=('day', 'role', 'model', 'knowledge_base_id'), name='use_once_per_day_model_and_kb')],
            },
        ),
    ]
