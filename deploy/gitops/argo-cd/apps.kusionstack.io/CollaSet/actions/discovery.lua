-- The actions that make sense now.
local paused = obj.spec.paused == true
actions = {}
actions["pause"] = { ["disabled"] = paused }
actions["resume"] = { ["disabled"] = not paused }
actions["restart"] = { ["disabled"] = paused }
return actions
