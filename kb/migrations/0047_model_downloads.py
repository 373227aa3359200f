import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('kb', '0046_provider_models'),
    ]

    operations = [
        migrations.CreateModel(
            name='ModelDownload',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('model', models.CharField(max_length=200, unique=True, verbose_name='model')),
                ('mirror', models.CharField(blank=True, max_length=200, verbose_name='mirror')),
                ('status', models.CharField(choices=[('waiting', 'Waiting'), ('running', 'Downloading'), ('done', 'Downloaded'), ('failed', 'Failed'), ('cancelled', 'Cancelled')], default='waiting', max_length=12, verbose_name='status')),
                ('bytes_done', models.BigIntegerField(default=0)),
                ('bytes_total', models.BigIntegerField(null=True)),
                ('error', models.TextField(blank=True, default='', verbose_name='error')),
                ('attempts', models.PositiveIntegerField(default=0)),
                ('lease', models.UUIDField(editable=False, null=True)),
                ('lease_until', models.DateTimeField(editable=False, null=True)),
                ('updated_at', models.DateTimeField(auto_now=True, verbose_name='updated')),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL, verbose_name='created by')),
            ],
            options={
                'verbose_name': 'download of a model',
                'verbose_name_plural': 'downloads of models',
            },
        ),
    ]
