-- Go on with what is left to do.
obj.spec.paused = nil
return obj
