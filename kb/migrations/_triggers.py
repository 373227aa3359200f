"""Adding and removing triggers without building the models of the migration's state anew for each.

Theirs do, although no field changes, and more than half of the time that a new database takes goes into it. Have
`pgtrigger.migrations.AddTrigger` read `_triggers.AddTrigger` in what makemigrations writes.
"""

from pgtrigger import migrations


class AddTrigger(migrations.AddTrigger):
    def state_forwards(self, app_label, state):
        options = state.models[app_label, self.model_name].options
        options["triggers"] = [*options.get("triggers", []), self.trigger]


class RemoveTrigger(migrations.RemoveTrigger):
    def state_forwards(self, app_label, state):
        options = state.models[app_label, self.model_name].options
        options["triggers"] = [trigger for trigger in options.get("triggers", []) if trigger.name != self.name]
